"""Probabilities of answers, from the calibration beside run.json: see `graphmill.model.calibration`."""

import numpy as np
import numpy.typing as npt

from graphmill.ask.run import TrainedRun
from graphmill.ask.scan import Answers
from graphmill.checkpoints import pbg
from graphmill.formats import calibration
from graphmill.formats.calibration import Calibration
from graphmill.model.calibration import NUM_BEST, Scale, probabilities, shares


def read_calibration(trained: TrainedRun) -> Calibration:
    """Read the calibration of the run; raises as `graphmill.formats.calibration.read`."""
    config = trained.config
    checksum = pbg.version_checksum(trained.checkpoint_path, trained.version)
    uri = calibration.uri_beside(config.record_uri(config.checkpoint_path))
    return calibration.read(uri, trained.version, checksum)


def probabilities_of(answers: Answers, scale: Scale) -> npt.NDArray[np.float32]:
    """The probability of each answer, [M]; a query has its NUM_BEST best answers, or all there are."""
    query, place = answers.query, answers.place
    most = max(int(place.max(initial=0)) + 1, NUM_BEST)
    share_QK = shares(answers.table(int(query.max(initial=-1)) + 1, most)[0], scale.temperature)
    return probabilities(share_QK[query, place], *scale.line).astype(np.float32)
