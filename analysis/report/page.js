"use strict";
// Switches: show, on every card, the row of multipliers.csv that they name. Words come ready made.
const choices = JSON.parse(document.getElementById("choices").textContent);
const switches = [...document.querySelectorAll("[data-switch]")];
const absent = { number: "–", interval: "", verdict: "not computed", tone: "open",
                 note: "no such combination in multipliers.csv; other rules for E exist for the headline only" };
function show() {
  const key = switches.map((control) => control.value).join("|");
  for (const card of document.querySelectorAll(".card")) {
    const choice = choices[card.dataset.arm][key] || absent;
    for (const part of card.querySelectorAll("[data-part]")) part.textContent = choice[part.dataset.part];
    if (choice.behind) card.querySelector("a").hash = choice.behind;
    card.dataset.tone = choice.tone;
  }
}
for (const control of switches) control.addEventListener("change", show);

// Points: the run's facts beside the pointer; a click leads to its row.
const hint = document.createElement("div");
hint.className = "hint";
hint.hidden = true;
document.body.append(hint);
const pointOf = (event) => event.target.closest("[data-run]");
for (const title of document.querySelectorAll("[data-run] > title")) {
  title.parentElement.dataset.words = title.textContent;
  title.remove(); // the browser's own hint would cover ours
}
document.addEventListener("pointerover", (event) => {
  const point = pointOf(event);
  hint.hidden = !point;
  if (!point) return;
  hint.textContent = point.dataset.words;
  const width = document.documentElement.clientWidth;
  hint.style.left = Math.max(4, Math.min(event.clientX + 12, width - hint.offsetWidth - 8)) + "px";
  hint.style.top = event.clientY + 14 + "px";
});
document.addEventListener("click", (event) => {
  const point = pointOf(event);
  if (point) location.hash = "run-" + point.dataset.run;
});
