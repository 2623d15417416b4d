// Keys: `/` searches, `g` and a letter goes to a page, `t` changes the theme, `?` lists them.
export function startKeys(nextTheme) {
  let before = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, textarea, select, [contenteditable]") || document.querySelector("dialog[open]")) return;
    const typed = `${before} ${event.key}`.trim();
    before = event.key === "g" ? "g" : "";
    const link = document.querySelector(`a[data-keys="${CSS.escape(typed)}"]`);
    if (link) link.click();
    else if (event.key === "/") document.querySelector("[data-search]")?.focus();
    else if (event.key === "?") document.getElementById("help").showModal();
    else if (event.key === "t") nextTheme();
    else return;
    event.preventDefault();
  });
}
