// Figures that compute in the page. `rendering.py` writes the HTML around this file and fills it
// with the result of fedlib for the first settings, so the figure is complete without this script.
//
// A method takes the data of the figure and the settings, and returns
//   labels   the cluster or class of each point, -1 for noise
//   ringed   the numbers of the points to draw with a ring
//   shapes   what the server receives or builds, in the order of drawing
//   summary  one or two sentences, which a screen reader reads out after each change
//
// Every method repeats the operations of fedlib in the same order, so that almost all rounding is
// the same too. `tests/book/test_interactive.py` compares the results.
(() => {
  const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`
  const colour = (label) => (label < 0 ? "noise" : `k${label % 10}`)
  const range = (n) => Array.from({ length: n }, (_, i) => i)
  const largest = (labels) => labels.reduce((a, b) => Math.max(a, b), -1)

  function found(labels) {
    const noise = labels.filter((label) => label < 0).length
    return `${count(largest(labels) + 1, "cluster")}, ${count(noise, "noise point")}.`
  }

  function squaredDistance(a, b) {
    const dx = a[0] - b[0], dy = a[1] - b[1]
    return dx * dx + dy * dy
  }

  // The order of rows of numbers by their first column, then by the next.
  function lexicographicOrder(rows) {
    const compare = (a, b) => {
      const k = a.findIndex((value, i) => value !== b[i])
      return k < 0 ? 0 : a[k] - b[k]
    }
    return range(rows.length).sort((i, j) => compare(rows[i], rows[j]) || i - j)
  }

  // ---------------------------------------------------------------- horizontal DBSCAN

  const FACES = [[-1, 0], [0, -1], [0, 1], [1, 0]] // in lexicographic order

  function countCells(points, cellSize) {
    const counts = new Map()
    for (const point of points) {
      const key = point.map((x) => Math.floor(x / cellSize)).join()
      counts.set(key, (counts.get(key) ?? 0) + 1)
    }
    return counts
  }

  // Label adjacent dense cells alike. Clusters are numbered by their first cell.
  function labelCells(cells, counts, minSamples) {
    const labels = new Map()
    const dense = (key) => counts.get(key) >= minSamples
    let n = 0
    for (const cell of cells) {
      if (!dense(cell.join()) || labels.has(cell.join())) continue
      labels.set(cell.join(), n)
      for (const stack = [cell]; stack.length; ) {
        const [i, j] = stack.pop()
        for (const [di, dj] of FACES) {
          const near = [i + di, j + dj]
          if (!dense(near.join()) || labels.has(near.join())) continue
          labels.set(near.join(), n)
          stack.push(near)
        }
      }
      n++
    }
    return labels
  }

  // Return the cluster of a point's cell, or of the adjacent cell with the nearest centre, or -1.
  function placePoint(point, cellSize, labels) {
    const [i, j] = point.map((x) => Math.floor(x / cellSize))
    if (labels.has(`${i},${j}`)) return labels.get(`${i},${j}`)
    let nearest = -1, smallest = Infinity
    for (const [di, dj] of FACES) {
      const label = labels.get(`${i + di},${j + dj}`)
      if (label === undefined) continue
      const centre = [i + di, j + dj].map((k) => k * cellSize + cellSize / 2)
      const distance = squaredDistance(point, centre)
      if (distance < smallest) [nearest, smallest] = [label, distance]
    }
    return nearest
  }

  function horizontalDBSCAN({ points }, { cell_size, min_samples, n_clients, n_passive }) {
    const nSharing = Math.max(1, n_clients - n_passive)
    const shares = (row) => row % n_clients < nSharing
    const counts = countCells(points.filter((_, row) => shares(row)), cell_size)
    const unsorted = [...counts.keys()].map((key) => key.split(",").map(Number))
    const cells = lexicographicOrder(unsorted).map((i) => unsorted[i])
    const clusters = labelCells(cells, counts, min_samples)
    const labels = points.map((point) => placePoint(point, cell_size, clusters))
    const most = Math.max(...counts.values())
    const shapes = cells.map((cell) => {
      const key = cell.join()
      return {
        kind: "square", x: cell[0] * cell_size, y: cell[1] * cell_size, size: cell_size,
        class: colour(clusters.get(key) ?? -1),
        opacity: 0.3 + 0.7 * Math.sqrt(counts.get(key) / most),
      }
    })
    const received = `The server receives counts of ${count(cells.length, "occupied cell")}; `
    return {
      labels,
      ringed: range(points.length).filter((row) => !shares(row)),
      shapes,
      summary: `${found(labels)} ${received}${clusters.size} of them are dense.`,
    }
  }

  // The same for a table of the reader, without passive clients: what the counts of each site say.
  function ownTable({ points }, settings) {
    const { cell_size, n_clients, site } = settings
    const state = horizontalDBSCAN({ points }, { ...settings, n_passive: 0 })
    const sent = range(n_clients).flatMap((client) => {
      const part = points.filter((_, row) => row % n_clients === client)
      return [...countCells(part, cell_size).values()]
    })
    const alone = sent.filter((n) => n === 1).length
    return {
      ...state,
      ringed: range(points.length).filter((row) => row % n_clients === site - 1),
      summary: `${state.summary} The sites send ${count(sent.length, "count")}; ${alone} of them ` +
        "are 1, and place a row to within one cell.",
    }
  }

  // ---------------------------------------------------------------- Lloyd's iteration

  // Neumaier's sum: the rounding errors are added at the end, so the order hardly matters.
  function sum(values) {
    let total = 0, compensation = 0
    for (const value of values) {
      const next = total + value
      const larger = Math.abs(total) >= Math.abs(value)
      compensation += larger ? total - next + value : value - next + total
      total = next
    }
    return total + compensation
  }

  function nearestCentre(point, centres) {
    let nearest = 0, smallest = Infinity
    centres.forEach((centre, c) => {
      const distance = squaredDistance(point, centre)
      if (distance < smallest) [nearest, smallest] = [c, distance]
    })
    return nearest
  }

  // Return for each client and cluster the number of points and their sums.
  function clusterSums(points, nClients, centres) {
    const labels = points.map((point) => nearestCentre(point, centres))
    return range(nClients).map((client) =>
      centres.map((_, c) => {
        const part = points.filter((_, row) => row % nClients === client && labels[row] === c)
        return { n: part.length, sums: [0, 1].map((k) => sum(part.map((point) => point[k]))) }
      }))
  }

  function kmeans({ points, starts }, { n_clusters, n_clients, start, rounds }) {
    let centres = starts[start].slice(0, n_clusters)
    const path = [centres]
    let replies = []
    for (let shift = 1; path.length <= rounds && shift > 0; ) {
      replies = clusterSums(points, n_clients, centres)
      const moved = centres.map((centre, c) => {
        const n = replies.reduce((total, reply) => total + reply[c].n, 0)
        if (n === 0) return centre
        return [0, 1].map((k) => sum(replies.map((reply) => reply[c].sums[k])) / n)
      })
      shift = sum(moved.map((centre, c) => squaredDistance(centre, centres[c])))
      centres = moved
      path.push(centres)
    }
    const labels = points.map((point) => nearestCentre(point, centres))
    const shapes = []
    path.slice(1).forEach((to, i) => to.forEach((end, c) => shapes.push({
      kind: "line", x: path[i][c][0], y: path[i][c][1], x2: end[0], y2: end[1], class: colour(c),
    })))
    for (const reply of replies)
      reply.forEach(({ n, sums }, c) => {
        if (n) shapes.push({
          kind: "disc", x: sums[0] / n, y: sums[1] / n, size: 1.1, class: colour(c), opacity: 0.6,
        })
      })
    centres.forEach(([x, y], c) => shapes.push({ kind: "cross", x, y, size: 2.5, class: colour(c) }))
    const n = path.length - 1
    const ended = n > 0 && path[n].every((centre, c) => centre.every((x, k) => x === path[n - 1][c][k]))
    return {
      labels, ringed: [], shapes,
      summary: `${count(n_clusters, "centre")} after ${count(n, "round")}; ` +
        `the centres ${ended ? "no longer move" : n ? "still move" : "have not moved yet"}. ` +
        `Each round, the server receives ${count(n_clients * n_clusters, "sum")}.`,
    }
  }

  // ---------------------------------------------------------------- PPDBDC

  const COINCIDENCE = 1e-6, MIN_WEIGHT = 3

  // Return the representatives of one client, and the representative of each of its rows. `order`
  // and `uniform` are the client's random numbers.
  function drawRepresentatives(points, { order, uniform }, epsRep, noise) {
    const rows = lexicographicOrder(points)
    const X = rows.map((row) => points[row])
    const owner = X.map(() => -1)
    const members = []
    for (const i of order) {
      if (owner[i] >= 0) continue
      const covered = range(X.length).filter(
        (j) => owner[j] < 0 && squaredDistance(X[i], X[j]) <= epsRep * epsRep)
      covered.forEach((j) => { owner[j] = members.length })
      members.push(covered)
    }
    const means = members.map((of) => [0, 1].map(
      (k) => of.reduce((total, j) => total + X[j][k], 0) / of.length))
    const few = members.map((of) => new Set(of.map((j) => X[j].join())).size < MIN_WEIGHT)
    const byRow = []
    rows.forEach((row, i) => { byRow[row] = owner[i] })
    const places = blur(means, few, X, noise * epsRep, uniform.values())
    return { places, weights: members.map((of) => of.length), owner: byRow }
  }

  // Add noise to the means of few points, and to every mean that coincides with a point.
  function blur(means, few, X, amplitude, uniform) {
    const radius = COINCIDENCE * amplitude
    const blurred = [...means]
    for (let redraw = few; ; redraw = means.map(() => false)) {
      redraw = redraw.map((is, i) =>
        is || X.some((point) => squaredDistance(blurred[i], point) <= radius * radius))
      if (!redraw.includes(true)) return blurred
      redraw.forEach((is, i) => {
        if (is) blurred[i] = means[i].map((x) => x + amplitude * uniform.next().value)
      })
    }
  }

  // DBSCAN on weighted points in lexicographic order; other points join the nearest core point.
  function dbscan(X, weights, eps, minSamples) {
    const near = X.map((a) => range(X.length).filter((j) => squaredDistance(a, X[j]) <= eps * eps))
    const core = near.map((of) => of.reduce((total, j) => total + weights[j], 0) >= minSamples)
    const labels = X.map(() => -1)
    let n = 0
    core.forEach((is, first) => {
      if (!is || labels[first] >= 0) return
      labels[first] = n
      for (const stack = [first]; stack.length; )
        for (const j of near[stack.pop()])
          if (core[j] && labels[j] < 0) {
            labels[j] = n
            stack.push(j)
          }
      n++
    })
    return labels.map((label, i) => {
      if (core[i]) return label
      let joined = -1, smallest = Infinity
      for (const j of near[i].filter((j) => core[j])) {
        const distance = squaredDistance(X[i], X[j])
        if (distance < smallest) [joined, smallest] = [labels[j], distance]
      }
      return joined
    })
  }

  function ppdbdc({ points, draws }, { eps, min_samples, eps_rep, noise }) {
    const clientOf = (row) => row % draws.length
    const replies = draws.map((draw, client) => drawRepresentatives(
      points.filter((_, row) => clientOf(row) === client), draw, eps_rep * eps, noise))
    const places = replies.flatMap((reply) => reply.places)
    const weights = replies.flatMap((reply) => reply.weights)
    const order = lexicographicOrder(places.map((place, i) => [...place, weights[i]]))
    const clusters = []
    dbscan(order.map((i) => places[i]), order.map((i) => weights[i]), eps, min_samples)
      .forEach((label, i) => { clusters[order[i]] = label })
    const firsts = replies.map((_, client) =>
      replies.slice(0, client).reduce((total, reply) => total + reply.places.length, 0))
    const labels = points.map((_, row) => {
      const client = clientOf(row)
      const owner = replies[client].owner[Math.floor(row / draws.length)]
      return clusters[firsts[client] + owner]
    })
    const single = weights.filter((weight) => weight < MIN_WEIGHT).length
    return {
      labels, ringed: [],
      shapes: places.map(([x, y], i) => ({
        kind: "disc", x, y, size: 0.6 * Math.sqrt(weights[i]), class: colour(clusters[i]),
        opacity: 0.6,
      })),
      summary: `${found(labels)} The server receives ${count(places.length, "representative")} ` +
        `instead of ${count(points.length, "point")}; ${single} of them cover fewer than ` +
        `${MIN_WEIGHT} points and have noise.`,
    }
  }

  // ---------------------------------------------------------------- boosted trees

  // Return the log-odds of points (float32 numbers), added up in float32.
  function margins(points, trees, base) {
    return points.map((point) => {
      let margin = Math.fround(base)
      for (const { feature, threshold, left, value } of trees) {
        let node = 0
        while (feature[node] >= 0)
          node = left[node] + (point[feature[node]] < threshold[node] ? 0 : 1)
        margin = Math.fround(margin + value[node])
      }
      return margin
    })
  }

  function boosting({ points, classes, base, forests, tiles }, { n_trees, max_depth }) {
    const trees = forests[max_depth].slice(0, n_trees)
    const labels = margins(points, trees, base).map((margin) => Number(margin > 0))
    const shapes = margins(tiles.centres, trees, base).map((margin, i) => ({
      kind: "square", x: tiles.corners[i][0], y: tiles.corners[i][1], size: tiles.size,
      class: colour(Number(margin > 0)),
      opacity: 0.1 + 0.8 * Math.abs(2 / (1 + Math.exp(-margin)) - 1),
    }))
    const ringed = range(points.length).filter((row) => labels[row] !== classes[row])
    const nodes = trees.reduce((total, tree) => total + tree.feature.length, 0)
    return {
      labels, ringed, shapes,
      summary: `${count(ringed.length, "point")} of ${points.length} in the wrong class. ` +
        `The model has ${count(n_trees, "tree")} with ${count(nodes, "node")}.`,
    }
  }

  // ---------------------------------------------------------------- the figure

  const METHODS = {
    "horizontal-dbscan": horizontalDBSCAN, "own-table": ownTable, kmeans, ppdbdc, boosting,
  }

  function element(shape, unit) {
    const { x, y } = shape
    const size = shape.size * unit
    const [name, attributes] = {
      square: () => ["rect", { x, y: -y - shape.size, width: shape.size, height: shape.size }],
      disc: () => ["circle", { cx: x, cy: -y, r: size }],
      line: () => ["path", { d: `M${x} ${-y}L${shape.x2} ${-shape.y2}` }],
      cross: () => ["path", { d: `M${x - size} ${-y}h${2 * size}M${x} ${-y - size}v${2 * size}` }],
    }[shape.kind]()
    const node = document.createElementNS("http://www.w3.org/2000/svg", name)
    Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value))
    node.setAttribute("class", `${shape.kind} ${shape.class}`)
    if (shape.opacity !== undefined) node.setAttribute("opacity", shape.opacity)
    return node
  }

  function draw(figure, unit, { labels, ringed, shapes, summary }) {
    const marked = new Set(ringed)
    figure.querySelectorAll(".points circle").forEach((circle, row) => {
      circle.setAttribute("class", colour(labels[row]) + (marked.has(row) ? " ringed" : ""))
    })
    figure.querySelector(".shapes").replaceChildren(...shapes.map((shape) => element(shape, unit)))
    figure.querySelector(".summary").textContent = summary
  }

  function start(figure) {
    const { method, data, unit } = JSON.parse(figure.querySelector("[type='application/json']").text)
    const inputs = [...figure.querySelectorAll("input[type='range']")]
    const valuesOf = (input) => JSON.parse(input.dataset.values)
    const compute = (settings) => METHODS[method](data, settings)
    const update = () => {
      const settings = {}
      for (const input of inputs) {
        const value = valuesOf(input)[input.value]
        settings[input.name] = value
        input.labels[0].querySelector("output").textContent = value
        input.setAttribute("aria-valuetext", value)
      }
      draw(figure, unit, compute(settings))
    }
    inputs.forEach((input) => input.addEventListener("input", update))
    figure.querySelector(".controls").hidden = false
    figure.compute = compute
    figure.showPoints = (points) => { // others than those of the page
      data.points = points
      figure.querySelector(".points").replaceChildren(...points.map(([x, y]) =>
        element({ kind: "disc", class: "", x, y, size: 0.85 }, unit)))
      update()
    }
    figure.dataset.ready = "yes"
  }

  document.querySelectorAll("figure.fedlib-interactive:not([data-ready])").forEach(start)
})()
