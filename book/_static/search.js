// Answer the question in the address of the search page. The index is from book/_ext/page_search.py:
// for each page its questions, and for each word (its stem) the pages with it and its weight there.
const WEAK = 0.3; // the weight of words such as "which" in a comparison of questions
const SHOWN = 20;
const stemmer = new Stemmer();

class Index {
  constructor({ pages, objects, groups, dropped, weak, terms }) {
    Object.assign(this, { pages, objects, groups, terms });
    this.dropped = new Set(dropped);
    this.weak = new Set(weak);
    this.questions = pages.flatMap(([, , , asked], page) =>
      asked.map((text) => ({ page, words: this.concepts(text) })));
    const counts = new Map();
    for (const { words } of this.questions)
      for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
    this.rarity = (word) => Math.log(1 + this.questions.length / (1 + (counts.get(word) ?? 0)));
  }

  // The stems of the words of a text. A word with a typing error becomes one of the index.
  stems(text) {
    const joined = text.toLowerCase().replace(/\b([a-z])-(?=[a-z])/g, "$1");
    const words = joined.match(/[\p{L}\p{N}]+/gu) ?? [];
    const stems = words.map((word) => stemmer.stemWord(word)).filter((stem) => !this.dropped.has(stem));
    return stems.map((stem) => this.known(stem));
  }

  known(stem) {
    if (stem in this.terms || stem in this.groups || stem.length < 4) return stem;
    const near = Object.keys(this.terms).filter(
      (term) => term[0] === stem[0] && Math.abs(term.length - stem.length) <= 1 && isNear(term, stem));
    const longer = Object.keys(this.terms).filter((term) => term.startsWith(stem));
    const candidates = near.length ? near : longer;
    return candidates.sort((a, b) => this.terms[b].length - this.terms[a].length)[0] ?? stem;
  }

  // The words of a text without repetition; those that mean the same are one.
  concepts(text) {
    return new Set(this.stems(text).map((stem) => (stem in this.groups ? `#${this.groups[stem]}` : stem)));
  }

  weight(word) {
    return this.rarity(word) * (this.weak.has(word) ? WEAK : 1);
  }

  // How similar each page's nearest question is, from 0 to 1.
  similar(text) {
    const asked = this.concepts(text);
    const norm = (words) => Math.hypot(...[...words].map((word) => this.weight(word)));
    const best = new Map();
    for (const { page, words } of this.questions) {
      const common = [...words].filter((word) => asked.has(word));
      if (!common.length) continue;
      const cosine = norm(common) ** 2 / (norm(words) * norm(asked));
      best.set(page, Math.max(best.get(page) ?? 0, cosine));
    }
    return best;
  }

  // The sum of the weights of the words on each page, relative to the largest one.
  matching(text) {
    const sums = new Map();
    for (const stem of new Set(this.stems(text))) {
      const factor = this.weak.has(stem) ? WEAK : 1;
      for (const term of [stem, `#${this.groups[stem]}`]) {
        const found = this.terms[term] ?? [];
        for (let i = 0; i < found.length; i += 2)
          sums.set(found[i], (sums.get(found[i]) ?? 0) + factor * found[i + 1]);
      }
    }
    const largest = Math.max(...sums.values());
    return new Map([...sums].map(([page, sum]) => [page, sum / largest]));
  }

  // The results of a search, the best first: address, title and summary.
  find(text) {
    const scores = this.matching(text);
    for (const [page, cosine] of this.similar(text))
      scores.set(page, (scores.get(page) ?? 0) + 2 * cosine ** 2);
    const found = [...scores].sort((a, b) => b[1] - a[1]).slice(0, SHOWN);
    const results = found.map(([page]) => this.pages[page]);
    const name = text.trim().split(".").at(-1).toLowerCase();
    if (Object.hasOwn(this.objects, name)) {
      const [page, anchor, full] = this.objects[name];
      const [address, , summary] = this.pages[page];
      const isName = /.[A-Z_.]/.test(text.trim()); // a word such as "load" is first a word
      results.splice(isName ? 0 : 1, 0, [`${address}#${anchor}`, full, summary]);
    }
    return results;
  }
}

// Whether one letter more, less, or different, or two letters exchanged, makes two words equal.
function isNear(a, b) {
  let first = 0;
  while (first < a.length && a[first] === b[first]) first++;
  const [restA, restB] = [a.slice(first), b.slice(first)];
  return restA.slice(1) === restB || restA === restB.slice(1) || restA.slice(1) === restB.slice(1)
    || (restA[0] === restB[1] && restA[1] === restB[0] && restA.slice(2) === restB.slice(2));
}

function useIndex(content) {
  const asked = new URLSearchParams(location.search).get("q")?.trim() ?? "";
  const box = document.getElementById("search-results");
  for (const input of document.querySelectorAll("input[name=q]")) input.value = asked;
  if (!asked) return;
  const results = new Index(content).find(asked);
  const list = document.createElement("ul");
  list.className = "search";
  for (const [address, title, summary] of results) {
    const link = document.createElement("a");
    link.href = document.documentElement.dataset.content_root + address;
    link.textContent = title;
    const text = document.createElement("p");
    text.textContent = summary;
    const item = document.createElement("li");
    item.append(link, text);
    list.append(item);
  }
  const heading = document.createElement("p");
  heading.textContent = results.length
    ? "The pages that answer best come first."
    : "No page has these words. Try others, or look into the glossary.";
  box.replaceChildren(heading, list);
}
