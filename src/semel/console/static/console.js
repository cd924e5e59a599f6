// The console works without this file. With it, pages are read again by themselves, and keys work.
//
// No text becomes HTML here: the browser parses a page that it has asked for into a document of its
// own, in which nothing runs, and nodes are moved from there. So Trusted Types can forbid all the
// rest, and no policy is needed.
"use strict";
(() => {
  const typing = (node) => node instanceof Element && node.closest("input, select, textarea, [contenteditable]") !== null;
  const main = () => document.getElementById("main");

  // ── reading the page again ──

  let paused = false;
  let timer = 0;
  let running = false;

  const state = document.getElementById("refresh-state");
  const pause = document.getElementById("refresh-pause");

  function busy() {
    // What somebody is at work on stays as it is.
    if (document.querySelector("dialog[open]") !== null) return true;
    const at = document.activeElement;
    if (typing(at) && main().contains(at)) return true;
    if (main().querySelector("input[type=checkbox]:checked:not([data-keep]), details[open] form") !== null) return true;
    const chosen = document.getSelection();
    return chosen !== null && !chosen.isCollapsed;
  }

  function seconds() { return Number(main().dataset.refresh || 0); }

  function read() {
    if (running) return;
    running = true;
    const asked = new XMLHttpRequest();
    asked.open("GET", location.href);
    asked.responseType = "document";
    asked.setRequestHeader("Accept", "text/html");
    asked.onloadend = () => {
      running = false;
      const found = asked.responseXML && asked.responseXML.getElementById("main");
      if (asked.status === 200 && found && !busy()) swap(found);
      tell(asked.status === 200 ? "" : "The console does not answer; this is what was read last.");
      plan();
    };
    asked.send();
  }

  function swap(found) {
    const at = document.querySelector("tr.at");
    const row = at ? at.dataset.row || rows().indexOf(at) : null;
    begun = performance.now();
    main().replaceChildren(...document.importNode(found, true).childNodes);
    const again = typeof row === "string" ? rows().find((each) => each.dataset.row === row) : rows()[row];
    if (row !== null && again) mark(again, false);
  }

  function plan() {
    clearTimeout(timer);
    if (!seconds() || paused || document.hidden) return;
    timer = setTimeout(() => (busy() ? plan() : read()), seconds() * 1000);
  }

  function tell(problem) {
    if (!state) return;
    state.textContent = problem || (paused ? "Not refreshed: paused" : `Refreshed every ${seconds()} s`);
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Resume" : "Pause";
  }

  function toggle() {
    if (!seconds()) return;
    paused = !paused;
    tell("");
    plan();
  }

  // ── rows ──

  const rows = () => [...main().querySelectorAll("tbody tr")];

  function mark(row, scroll) {
    for (const each of main().querySelectorAll("tr.at")) each.classList.remove("at");
    row.classList.add("at");
    const link = row.querySelector("a, input[type=checkbox]");
    if (link && scroll) link.focus({ preventScroll: true });
    if (scroll) row.scrollIntoView({ block: "nearest" });
  }

  function step(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((each) => each.classList.contains("at"));
    mark(all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))], true);
  }

  const marked = () => main().querySelector("tr.at");

  // ── keys ──

  const keys = document.getElementById("keys");
  const acts = {
    "/": () => { const field = main().querySelector("input:not([type=hidden], [type=checkbox], [type=radio]), select"); if (field) { field.closest("details")?.setAttribute("open", ""); field.focus(); } },
    j: () => step(1),
    k: () => step(-1),
    x: () => marked()?.querySelector("input[type=checkbox]")?.click(),
    r: () => location.reload(),
    p: toggle,
    "?": () => keys.showModal(),
    Enter: () => marked()?.querySelector("a")?.click(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && typing(event.target)) { event.target.blur(); return; }
    if (typing(event.target) && event.target.type !== "checkbox") return;
    if (keys.open) return;
    if (event.key === "Enter" && event.target instanceof Element && event.target.closest("a, button, summary")) return;
    const act = acts[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  // What is left of a lease: counted from when the page was read, by no clock but the browser's own.
  let begun = performance.now();
  setInterval(() => {
    for (const each of main().querySelectorAll("[data-left]")) {
      const left = Math.max(0, Math.ceil(Number(each.dataset.left) - (performance.now() - begun) / 1000));
      each.textContent = left ? `${left} s` : "over, if it was not renewed";
    }
  }, 1000);

  // All boxes of a table at once.
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (!(box instanceof HTMLInputElement) || !box.dataset.all) return;
    for (const each of main().querySelectorAll("input[type=checkbox]")) {
      if (each.name === box.dataset.all) each.checked = box.checked;
    }
  });

  document.addEventListener("visibilitychange", () => {
    // A hidden tab asks for nothing; back in sight it is up to date at once.
    if (document.hidden) clearTimeout(timer);
    else if (seconds() && !paused && !busy()) read();
    else plan();
  });

  document.getElementById("keys-open").hidden = false;
  document.getElementById("keys-open").addEventListener("click", () => keys.showModal());
  if (seconds()) {
    document.getElementById("refreshing").hidden = false;
    pause.addEventListener("click", toggle);
    tell("");
    plan();
  }
})();
