// A document for libraries that insert `style` elements and attributes, which the policy of our pages refuses. Styles of
// scripts are allowed, so an element that holds a style sheet takes the place of each.
class SheetElement extends HTMLElement {
  #sheet = new CSSStyleSheet();

  connectedCallback() {
    document.adoptedStyleSheets.push(this.#sheet);
  }

  disconnectedCallback() {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== this.#sheet);
  }

  set textContent(rules) {
    this.#sheet.replaceSync(rules);
  }
}

customElements.define("skerry-sheet", SheetElement);

// The same for the attribute: what a script sets by `style.cssText` is allowed.
const { setAttribute } = Element.prototype;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else setAttribute.call(this, name, value);
};

function createElement(tag, options) {
  return document.createElement(tag === "style" ? "skerry-sheet" : tag, options);
}

export const styledDocument = new Proxy(document, {
  get(target, name) {
    if (name === "createElement") return createElement;
    const value = Reflect.get(target, name, target);
    return typeof value === "function" ? value.bind(target) : value;
  },
});

// The style sheet of a library, from beside this file.
export function loadStyles(name) {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL(name, import.meta.url);
  return new Promise((resolve) => {
    link.onload = link.onerror = resolve;
    document.head.append(link);
  });
}
