"""The state of a table's optimizer: what is saved is what torch and PBG save, and either is taken over."""

import pytest
import torch

from graphmill import config as configuration
from graphmill.checkpoints import pbg
from graphmill.errors import FormatError
from tests.train.graphs import embeddings, make_config, random_triples, write_graph
from train import job
from train.model import optimizer

SHAPE = (3, 2)


def changed(config, **settings):
    return configuration.from_mapping(config.model_dump() | settings)


@pytest.mark.slow
def test_elementwise_state_is_that_of_torch():
    """torch's own Adagrad loads what we save, and moves on as ours does."""
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    sums = torch.tensor([[1.0, 4.0], [9.0, 16.0], [25.0, 36.0]])
    gradient = torch.tensor([[0.5, -0.5], [1.0, 2.0], [0.0, 3.0]])
    theirs = rows.clone().requires_grad_()
    torch_adagrad = torch.optim.Adagrad([theirs], lr=0.1)
    torch_adagrad.load_state_dict(optimizer.table_state(sums.clone(), 0.1))
    theirs.grad = gradient
    torch_adagrad.step()
    optimizer.update_rows(rows, sums, torch.arange(3), gradient, 0.1)
    torch.testing.assert_close(rows, theirs.detach())
    torch.testing.assert_close(sums, torch_adagrad.state[theirs]["sum"])


def test_either_state_is_taken_over():
    by_row = optimizer.table_state(torch.tensor([1.0, 2.0, 3.0]), 0.1)
    by_element = optimizer.table_state(torch.tensor([[0.0, 2.0], [2.0, 2.0], [0.0, 6.0]]), 0.1)
    for state in (by_row, by_element):
        found = optimizer.sums_of_table_state(state, "row_adagrad", SHAPE, "here")
        assert found.tolist() == [1.0, 2.0, 3.0]
    spread = optimizer.sums_of_table_state(by_row, "adagrad", SHAPE, "here")
    assert spread.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert torch.equal(
        optimizer.sums_of_table_state(by_element, "adagrad", SHAPE, "here"), by_element["state"][0]["sum"]
    )


@pytest.mark.parametrize("sums", [torch.ones(2), torch.ones(3, 3), torch.ones(3, 2, 1), None])
def test_states_of_other_shapes_are_refused(sums):
    state = {"state": {0: {"sum": sums}}}
    for kind in ("row_adagrad", "adagrad"):
        with pytest.raises(FormatError, match="here: optimizer state: expected"):
            optimizer.sums_of_table_state(state, kind, SHAPE, "here")


def test_a_run_stopped_and_resumed_keeps_its_sums(tmp_path, rng):
    triples = random_triples(rng, 20, 1, 20, 60)
    whole, parts = (
        make_config(tmp_path / name, num_epochs=2, train={"optimizer": "adagrad"}) for name in ("a", "b")
    )
    for config in (whole, parts):
        write_graph(config, {"node": 20}, triples)
    job.train(whole)
    for epochs in (1, 2):
        job.train(changed(parts, num_epochs=epochs))
    assert torch.equal(*(embeddings(config, "node", 20) for config in (whole, parts)))
    _, state = pbg.read_embeddings(whole.checkpoint_path, "node", 0, 2)
    assert state["state"][0]["sum"].shape == (20, 8)
