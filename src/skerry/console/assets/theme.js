// Applies the chosen theme before the first paint. Loaded in the head, and so no module.
(() => {
  const theme = localStorage.getItem("skerry-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
