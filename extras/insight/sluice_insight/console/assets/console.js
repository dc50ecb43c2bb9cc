// Renews the part of the page that changes by itself, from server-sent events. Without this script every page still works.
"use strict";

const live = document.getElementById("live");
const status = document.getElementById("status");
const button = document.getElementById("pause");
let source = null;

/** Make `now` like `next`, touching only what differs, so that focus, selection and open details stay. */
function morph(now, next) {
  for (const { name } of Array.from(now.attributes)) {
    if (!next.hasAttribute(name) && !(now.tagName === "DETAILS" && name === "open")) now.removeAttribute(name);
  }
  for (const { name, value } of Array.from(next.attributes)) {
    if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  }
  const wanted = Array.from(next.childNodes);
  const known = new Map(Array.from(now.children).filter((child) => child.id).map((child) => [child.id, child]));
  let place = now.firstChild;
  for (const child of wanted) {
    let match = child.id ? known.get(child.id) : place;
    const fits = match && match.nodeName === child.nodeName && (match.id || "") === (child.id || "");
    if (!fits) {
      now.insertBefore(child, place);
      continue;
    }
    if (match !== place) now.insertBefore(match, place);
    else place = place.nextSibling;
    if (child.nodeType !== Node.ELEMENT_NODE) {
      if (match.nodeValue !== child.nodeValue) match.nodeValue = child.nodeValue;
    } else if (!match.isEqualNode(child)) {
      morph(match, child);
    }
  }
  while (place) {
    const after = place.nextSibling;
    place.remove();
    place = after;
  }
}

function renew(html) {
  const focused = document.activeElement;
  const next = new DOMParser().parseFromString("<div>" + html + "</div>", "text/html").body.firstChild;
  const copy = live.cloneNode(false);
  copy.replaceChildren(...next.childNodes);
  morph(live, copy);
  if (focused && focused !== document.activeElement && live.contains(focused)) focused.focus({ preventScroll: true });
  live.dataset.renewed = String(Number(live.dataset.renewed || 0) + 1);
}

function say(text) {
  if (status.textContent !== text) status.textContent = text;
}

function open() {
  source = new EventSource(live.dataset.events);
  source.onopen = () => say("Live");
  source.onmessage = (event) => renew(JSON.parse(event.data));
  source.onerror = () => say("The console doesn't answer; trying again");
}

function toggle() {
  if (source) {
    source.close();
    source = null;
    button.textContent = "Resume";
    say("Paused");
  } else {
    button.textContent = "Pause";
    open();
  }
}

if (live && live.dataset.events && window.EventSource) {
  button.hidden = false;
  button.addEventListener("click", toggle);
  open();
}
