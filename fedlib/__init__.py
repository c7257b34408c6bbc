"""Federated clustering and boosting: protocols written once, run over any transport.

Estimators are imported when they are first used, so that ``import fedlib`` is quick (SPEC 1).
``__init__.pyi`` lists them.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
