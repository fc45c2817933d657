// The chosen theme, set before the first paint. Without a choice the system's counts.
"use strict";
try {
  const chosen = localStorage.getItem("semel-theme");
  if (chosen === "dark" || chosen === "light") {
    document.documentElement.dataset.theme = chosen;
  }
} catch {
  // Storage is forbidden: the system's theme it is.
}
