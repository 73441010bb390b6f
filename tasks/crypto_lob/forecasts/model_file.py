"""Files of forecasting networks: safetensors, with what is needed to use them in the metadata."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from vecenv.learn.checkpoints import check_same_form, load_sealed, network_of, save_sealed
from vecenv.tasks.crypto_lob.factors.table import FACTORS
from vecenv.tasks.crypto_lob.forecasts.fit import FitSettings, new_network
from vecenv.tasks.crypto_lob.forecasts.moves import HORIZONS
from vecenv.tasks.crypto_lob.forecasts.network import ForecastNetwork

FORMAT = "vecenv-book-forecasts"


@dataclass(frozen=True, eq=False)
class ForecastModel:
    """A network in evaluation mode, and what it was fitted to.

    ``seen_until`` is the time in milliseconds of the latest price that it was fitted to, ``step_gap`` in seconds.
    """

    network: ForecastNetwork
    settings: FitSettings
    step_gap: float
    seen_until: int
    source: str

    def save(self, path: Path) -> None:
        """Write the model; an interruption leaves the file before."""
        record = {
            "settings": asdict(self.settings),
            "step_gap": self.step_gap,
            "seen_until_ms": self.seen_until,
            "source": self.source,
            "factors": list(FACTORS),
            "horizons": list(HORIZONS),
        }
        save_sealed(path, FORMAT, self.network.state_dict(), {"record": json.dumps(record)})

    @classmethod
    def load(cls, path: Path) -> ForecastModel:
        """Read a model.

        Raises FileNotFoundError if there is no such file, ValueError if it is of another kind, damaged, or of other
        factors or horizons.
        """
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such model; vecenv factors train writes one")
        tensors, metadata = load_sealed(path, FORMAT, "model of vecenv factors", "cpu")
        try:
            record = json.loads(metadata["record"])
            settings = FitSettings(**record["settings"])
            known = {"settings": asdict(settings), "step_gap": 0.0, "seen_until_ms": 0, "source": ""}
            check_same_form(asdict(settings), asdict(FitSettings()), "settings")
            check_same_form(record, known | {name: record[name] for name in ("factors", "horizons")}, "record")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path}: its record cannot be read ({error})") from error
        if record["factors"] != list(FACTORS) or record["horizons"] != list(HORIZONS):
            raise ValueError(f"{path}: of other factors or horizons than this version's; train it again")
        network = network_of(path, lambda: new_network(settings, len(FACTORS), len(HORIZONS)), tensors)
        return cls(network.eval(), settings, record["step_gap"], record["seen_until_ms"], record["source"])
