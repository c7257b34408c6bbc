// How the search ranks its results: Sphinx's own numbers, except that a module (priority 0) is not
// more important than the class of the same name.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 0, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  // What is imported from the package itself comes before its namesakes in modules.
  score: ([page, , , , score]) => score + (/reference\/fedlib\.\w+$/.test(page) ? 1 : 0),
}
