// Says on the page that a security key did not answer; allauth's scripts do the rest.
"use strict";

document.addEventListener("allauth.error", (event) => {
  event.preventDefault();
  document.getElementById("key-refusal")?.removeAttribute("hidden");
});
