// Read a CSV file in the page and show two of its columns in the figure around this script, whose
// `showPoints` computes and draws. The file goes nowhere: the page makes no request.
(() => {
  const MAX_ROWS = 3000, MAX_BYTES = 50e6
  const SEPARATORS = [",", ";", "\t"]

  // Return the rows of a CSV text as lists of texts. Quoted fields may contain separators and lines.
  function parse(text, separator) {
    const rows = [[]]
    let field = "", quoted = false
    const end = () => { rows.at(-1).push(field); field = "" }
    for (let i = 0; i < text.length; i++) {
      const c = text[i]
      if (quoted) {
        if (c === '"' && text[i + 1] === '"') { field += c; i++ }
        else if (c === '"') quoted = false
        else field += c
      } else if (c === '"' && field === "") quoted = true
      else if (c === separator) end()
      else if (c === "\n" || c === "\r") {
        if (c === "\r" && text[i + 1] === "\n") i++
        end()
        rows.push([])
      } else field += c
    }
    end()
    return rows.filter((row) => row.some((field) => field.trim() !== ""))
  }

  // The separator that divides the first line into most fields.
  function separatorOf(text) {
    const line = text.slice(0, text.search(/[\r\n]|$/))
    const n = (separator) => parse(line, separator)[0]?.length ?? 0
    return SEPARATORS.reduce((best, one) => (n(one) > n(best) ? one : best))
  }

  // A number, or NaN for a gap and for any other text.
  function toNumber(text = "", decimalComma) {
    const plain = (decimalComma ? text.replace(",", ".") : text).trim()
    return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(plain) ? Number(plain) : NaN
  }

  // Return the columns in which at least half of the fields are numbers, and not all equal.
  function numericColumns(text) {
    const separator = separatorOf(text)
    const [names = [], ...rows] = parse(text.replace(/^\uFEFF/, ""), separator)
    return names.map((name, j) => ({
      name: name.trim() || `column ${j + 1}`,
      values: rows.map((row) => toNumber(row[j], separator !== ",")),
    })).filter(({ values }) => {
      const known = values.filter(Number.isFinite)
      return 2 * known.length >= values.length && new Set(known).size > 1
    })
  }

  function toUnit(values) {
    const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b))
    return values.map((x) => (x - low) / (high - low))
  }

  function start(figure) {
    const input = figure.querySelector("[type='file']"), status = figure.querySelector(".status")
    const [first, second] = figure.querySelectorAll(".columns select")
    let columns = [], file = ""

    function show() {
      const [a, b] = [first, second].map((select) => columns[select.value].values)
      const complete = a.map((x, row) => row).filter((row) => Number.isFinite(a[row]) && Number.isFinite(b[row]))
      const step = Math.ceil(complete.length / MAX_ROWS)
      const rows = complete.filter((_, i) => i % step === 0)
      const [xs, ys] = [a, b].map((values) => rows.map((row) => values[row]))
      if ([xs, ys].some((values) => new Set(values).size < 2)) {
        status.textContent = "All values of a chosen column are equal in the complete rows. Choose another column."
        return
      }
      const [x, y] = [xs, ys].map(toUnit)
      figure.showPoints(x.map((value, i) => [value, y[i]]))
      const left = a.length - complete.length
      status.textContent = `${file}: ${rows.length} rows are shown` +
        (step > 1 ? `, one of every ${step}` : "") +
        (left ? `; ${left} have no number in one of the columns and are left out` : "") +
        ". The file has not left this page."
    }

    async function read(chosen) {
      if (!chosen) return
      if (chosen.size > MAX_BYTES) {
        status.textContent = `${chosen.name} has more than 50 MB. Take a part of it.`
        return
      }
      const found = numericColumns(await chosen.text())
      if (found.length < 2) {
        status.textContent = `${chosen.name} has ${found.length} columns of numbers, and two are needed. ` +
          "The first line must contain the names of the columns, and commas, semicolons or tabs separate them."
        return
      }
      columns = found
      file = chosen.name
      for (const [i, select] of [first, second].entries()) {
        select.replaceChildren(...columns.map(({ name }, j) => new Option(name, j, j === i, j === i)))
        select.disabled = false
      }
      show()
    }

    input.addEventListener("change", () => read(input.files[0]))
    first.addEventListener("change", show)
    second.addEventListener("change", show)
    figure.addEventListener("dragover", (event) => event.preventDefault())
    figure.addEventListener("drop", (event) => {
      event.preventDefault()
      read(event.dataTransfer.files[0])
    })
    figure.dataset.reads = "yes"
  }

  document.querySelectorAll("figure.fedlib-interactive:has([type='file']):not([data-reads])").forEach(start)
})()
