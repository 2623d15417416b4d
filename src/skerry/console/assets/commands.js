// The command of a dialog, kept as its fields are: the stem, and every field that has a value, with its flag if it has
// one. An amount of 0 is none, except for what has a unit.
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

function write(form) {
  const words = [form.dataset.stem];
  for (const field of form.querySelectorAll("[data-flag]")) {
    const { flag, unit } = field.dataset;
    if (field.type === "checkbox") {
      if (field.checked) words.push(flag);
    } else if (!flag) {
      if (field.value) words.push(quoted(field.value));
    } else if (field.value && (field.value !== "0" || unit)) {
      words.push(flag.endsWith("=") ? quoted(flag + field.value) : `${flag} ${quoted(field.value + unit)}`);
    }
  }
  const line = words.join(" ");
  const box = form.querySelector(".command");
  box.querySelector("[data-copy]").dataset.copy = line;
  // Each word by itself, as the template does: a line is broken between words, not at the hyphens of a flag.
  box.querySelector("code").replaceChildren(
    ...line.split(" ").flatMap((word, index) => {
      const part = document.createElement("span");
      part.className = "word";
      part.textContent = word;
      return index ? [" ", part] : [part];
    }),
  );
}

export function startCommands() {
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-stem]");
    if (form) write(form);
  });
}
