"""Leads `import vecenv` to the package where Python is started in the folder that holds this checkout.

There Python takes the checkout, a folder named `vecenv`, for the package, unless it finds one that is installed as
files. An editable installation is asked only after that.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

# Else it is imported by a tool, such as pytest by the name of the folder.
if __name__ == "vecenv":
    _here = Path(__file__).resolve().parent
    _elsewhere = [place for place in sys.path if isinstance(place, str) and Path(place, "vecenv").resolve() != _here]
    _found = [PathFinder.find_spec("vecenv", _elsewhere)]
    _finders = [finder for finder in sys.meta_path if finder is not PathFinder and hasattr(finder, "find_spec")]
    _found += [finder.find_spec("vecenv", None) for finder in _finders]
    # Import hooks find this file again.
    _spec = next((spec for spec in _found if spec is not None and spec.loader and spec.origin != __file__), None)
    if _spec is None:
        raise ImportError(f"vecenv is not installed: pip install -e {_here}")
    sys.modules["vecenv"] = _module = module_from_spec(_spec)
    _spec.loader.exec_module(_module)
