// Play the conversation of a protocol. `notebooks/study/interactive/theatre.py` writes the figure,
// which shows the end of a run and is complete without this script, and its recordings as JSON.
//
// A recording is a list of scenes: the server sends to the clients, or they reply. At `place` n, the
// first n scenes have happened. Who sends in a scene shows its picture before the messages travel,
// and who receives shows it afterwards. An empty picture changes nothing.
(() => {
  const DURATION = 1500 // ms that messages travel, and then the same again to look, at normal speed
  const still = matchMedia("(prefers-reduced-motion: reduce)")
  const lastBefore = (indices, end) => indices.slice(0, end).findLast((index) => index) ?? 0

  function start(root) {
    root.dataset.ready = "yes"
    const find = (selector) => root.querySelector(selector)
    const { pictures, recordings } = JSON.parse(find("[type='application/json']").text)
    const stage = find(".stage"), ledger = find(".ledger"), play = find(".play")
    const slider = find("input[type='range']"), speed = find("select")
    const server = find(".server"), sites = [...root.querySelectorAll(".site")]
    const circles = sites.map((site) => [...site.querySelectorAll(".points circle")])
    let recording = recordings[0], place = 0, playing = false, run = 0

    const draw = (panel, index) => { panel.querySelector(".overlay").innerHTML = pictures[index] }

    // Show the run at a place; `sending` is the scene whose messages have left, if any.
    function show(sending = place) {
      const { scenes, before, after } = recording
      const flying = sending > place
      const out = flying && scenes[place].out
      draw(server, lastBefore(scenes.map((scene) => scene.server), flying && out ? sending : place))
      const labelled = place > scenes.findLastIndex((scene) => scene.out)
      sites.forEach((panel, i) => {
        const indices = scenes.map((scene) => scene.sites[i])
        draw(panel, lastBefore(indices, flying && !out ? sending : place))
        const classes = ((labelled && after) || before)[i].split(" ")
        circles[i].forEach((circle, row) => circle.setAttribute("class", classes[row]))
      })
      ;[...ledger.children].forEach((entry, i) => { entry.hidden = i >= sending })
      const last = ledger.children[sending - 1]
      if (last) ledger.scrollTop = last.offsetTop - ledger.offsetTop - ledger.clientHeight + last.offsetHeight
      find(".total").textContent = recording.totals[sending]
      const said = last ? [...last.children].map((part) => part.textContent).join(" · ") : "Before the first message"
      find(".now").textContent = `${said}.`
      slider.value = sending
      slider.setAttribute("aria-valuetext", `${sending} of ${scenes.length}`)
    }

    function clear() {
      run++
      root.querySelectorAll(".chip").forEach((chip) => chip.remove())
    }

    function goTo(next) {
      pause()
      clear()
      place = Math.max(0, Math.min(recording.scenes.length, next))
      show()
    }

    // The ends of the way between the server and a site, in pixels from the corner of the stage.
    function ways(panel) {
      const { x, y } = stage.getBoundingClientRect()
      const above = server.getBoundingClientRect(), below = panel.getBoundingClientRect()
      const middle = above.x + above.width / 2, target = below.x + below.width / 2
      const away = Math.max(-1, Math.min(1, (target - middle) / stage.clientWidth))
      return [[middle + away * above.width - x, above.bottom - y], [target - x, below.top - y]]
    }

    const wait = (ms) => new Promise((done) => setTimeout(done, ms / Number(speed.value)))

    // Play one scene; false if the reader has done something else meanwhile.
    async function scene() {
      clear()
      const mine = run, { out, message, sizes } = recording.scenes[place]
      show(place + 1)
      await Promise.all(Object.entries(sizes).map(([i, size]) => {
        const [home, goal] = ways(sites[i])
        const chip = document.createElement("span")
        chip.className = "chip"
        chip.setAttribute("aria-hidden", "true")
        chip.innerHTML = `<b>${message}</b><br>${size}`
        stage.append(chip)
        const at = ([x, y]) => `translate(${x}px, ${y}px) translate(-50%, -50%)`
        const transform = out ? [at(home), at(goal)] : [at(goal), at(home)]
        chip.style.transform = at([goal[0], (home[1] + goal[1]) / 2]) // if nothing moves
        const duration = DURATION / Number(speed.value)
        return still.matches ? wait(DURATION) : chip.animate({ transform }, { duration, easing: "ease-in-out" }).finished
      }))
      if (run !== mine) return false
      place++
      if (!still.matches || playing) clear()
      show()
      return true
    }

    function pause() {
      playing = false
      play.textContent = "Play"
    }

    async function playOn() {
      if (place === recording.scenes.length) place = 0
      playing = true
      play.textContent = "Pause"
      while (playing && place < recording.scenes.length) {
        if (!(await scene())) return
        const mine = run
        await wait(DURATION)
        if (run !== mine) return
      }
      pause()
    }

    function step() {
      pause()
      if (place < recording.scenes.length) scene()
    }

    const toggle = () => { if (playing) goTo(place); else playOn() }

    function choose(index) {
      recording = recordings[index]
      ledger.innerHTML = recording.ledger.join("")
      slider.max = recording.scenes.length
      goTo(0)
    }

    play.addEventListener("click", toggle)
    find(".step").addEventListener("click", step)
    find(".back").addEventListener("click", () => goTo(place - 1))
    slider.addEventListener("input", () => goTo(Number(slider.value)))
    root.querySelectorAll("[type='radio']").forEach((radio) =>
      radio.addEventListener("change", () => choose(Number(radio.value))))
    root.addEventListener("keydown", (event) => {
      if (event.target.matches("input, select, button") || event.ctrlKey || event.metaKey || event.altKey) return
      const action = {
        " ": toggle, ArrowRight: step, ArrowLeft: () => goTo(place - 1),
        Home: () => goTo(0), End: () => goTo(recording.scenes.length),
      }[event.key]
      if (action) {
        event.preventDefault()
        action()
      }
    })
    root.querySelectorAll("[hidden]:is(.more, fieldset)").forEach((part) => { part.hidden = false })
    choose(0)
    playOn()
  }

  document.querySelectorAll(".fedlib-theatre[data-wanted]:not([data-ready])").forEach(start)
})()
