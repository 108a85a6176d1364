// The page of `ftdash dev`: its contents are fetched again every second.
"use strict";

const shown = document.getElementById("main");

async function refresh() {
  try {
    const answer = await fetch("/view");
    if (answer.ok) shown.innerHTML = await answer.text();
    document.getElementById("ended").hidden = true;
  } catch {
    document.getElementById("ended").hidden = false;
  }
}

setInterval(refresh, 1000);
