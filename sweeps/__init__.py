"""Many runs: grids, plans and launchers."""
