"""The study behind the pages: what the notebooks import, by topic.

Each page imports this package for what nearly all of them need; the other modules are in `attacks`,
`boosting`, `claims`, `clustering`, `interactive`, `measuring`, `running`, `shared` and `building`.
"""

import lazy_loader

# Late, so that the programs in `building` start without the libraries of the pages.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "interactive.theatre": ["theatre", "toy_parts"],
        "shared.data": [
            "CLASS",
            "checksum",
            "fetch",
            "in_order",
            "load",
            "load_grouped",
            "load_own",
        ],
        "shared.exercises": ["ask"],
        "shared.kept": ["FACTS", "check", "kept", "say", "say_all"],
        "shared.pages": [
            "PAGE_WIDTH",
            "ROOT",
            "badge",
            "conversation",
            "figure",
            "panels",
            "result_badge",
            "scores_table",
            "source",
            "styled",
            "table",
        ],
        "shared.published": ["by_metric", "fidelity", "judge", "published", "repeats"],
        "shared.results": ["KEPT", "KEY", "RESULTS", "VERSIONS", "read", "save", "save_and_choose"],
    },
)
