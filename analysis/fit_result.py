"""What a fit returns: a typed, frozen, JSON-serialisable result with a status."""

from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from attnres.errors import UserError


class FitInputError(UserError):
    """The numbers handed to a fit cannot be fitted: the message names the array, the point and the reason."""


class FitStatus(StrEnum):
    """How far a fit can be trusted.

    converged: a minimum inside the bounds. bound_hit: a minimum at E = 0, on which the standard errors are
    conditional. not_identifiable: the data do not determine the parameters. failed: no minimum found.
    """

    CONVERGED = "converged"
    BOUND_HIT = "bound_hit"
    NOT_IDENTIFIABLE = "not_identifiable"
    FAILED = "failed"


WITHOUT_ERRORS = (FitStatus.NOT_IDENTIFIABLE, FitStatus.FAILED)


class BootstrapSummary(BaseModel):
    """Spread of the parameters over weighted refits.

    Fields:
        n: refits asked for; failed: how many found no identifiable minimum (never dropped in silence);
        at_bound: how many ended on a bound of a coefficient (E = 0), which are valid refits.
        standard_errors: sample standard deviation over the valid refits, per parameter.
        percentiles: per parameter, percent ("2.5") -> value.
        withdrawn: too many refits failed; standard errors and percentiles are then empty.
        seed: of the resampling.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: int
    failed: int
    at_bound: int
    standard_errors: dict[str, float]
    percentiles: dict[str, dict[str, float]]
    withdrawn: bool
    seed: int
    message: str = ""


class FitResult(BaseModel):
    """One fitted law.

    Fields:
        form: registered name of the form; group: what was fitted (an arm), for people.
        parameter_names: the form's parameters in its order, which files keep (a JSON object has none).
        parameters: in the units of the input (loss in nats, x as given); empty when there is no answer.
        standard_errors: per parameter; None for fixed parameters and for those on a bound.
        covariance: rows and columns in the order of ``parameter_names``; zero where one did not vary.
        objective: sum over points of weight x rho(residual), rho = r^2/2 (Huber: linear beyond delta),
            over sigma where one was given; residual: "log" (ln loss - ln predicted) or "linear".
        range: lowest and highest value per input variable, and "loss".
        diagnostics: solver's numbers: gradient (largest cosine between residual and derivative),
            condition (of the scaled Jacobian), starts_ranked (by their objective), starts (followed to a
            minimum), starts_at_best (share of those), iterations, residual_sd, dof.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    form: str
    group: str = ""
    parameter_names: tuple[str, ...]
    parameters: dict[str, float]
    standard_errors: dict[str, float | None]
    covariance: list[list[float]] | None
    fixed: dict[str, float] = {}
    huber_delta: float | None = None
    residual: str = "log"
    bootstrap: BootstrapSummary | None = None
    objective: float | None
    n_points: int
    spec_ids: list[str]
    range: dict[str, list[float]]
    status: FitStatus
    message: str
    diagnostics: dict[str, float]

    @model_validator(mode="after")
    def _named(self) -> "FitResult":
        """Parameters and errors stand in the form's order, whatever order a file gave them."""
        for values in (self.parameters, self.standard_errors):
            if values and set(values) != set(self.parameter_names):
                raise ValueError(
                    f"names are {', '.join(self.parameter_names)}, values are of {', '.join(values)}"
                )
        size = len(self.parameter_names)
        rows = self.covariance if self.covariance is not None else [[0.0] * size] * size
        if len(rows) != size or any(len(row) != size for row in rows):
            raise ValueError(f"covariance is not {size} x {size}, one row and column a parameter")
        for name in ("parameters", "standard_errors"):
            values = getattr(self, name)
            self.__dict__[name] = {key: values[key] for key in self.parameter_names if key in values}
        return self

    @model_validator(mode="after")
    def _no_errors_without_answer(self) -> "FitResult":
        if self.status in WITHOUT_ERRORS:
            shown = [value for value in self.standard_errors.values() if value is not None]
            if shown or self.covariance is not None or self.bootstrap is not None:
                raise ValueError(f"a fit that is {self.status.value} carries no standard errors")
        return self

    @property
    def usable(self) -> bool:
        """Whether the parameters are a minimum that the data determine."""
        return self.status not in WITHOUT_ERRORS


def read_fit_result(path: Path) -> FitResult:
    """The fit in the file ``path``.

    Raises:
        UserError: the file is no fit, or one of another version of the code.
    """
    try:
        return FitResult.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{path}: {where + ': ' if where else ''}{first['msg']}; make it again (python -m analysis fits)"
        ) from error
