"""Which thing each anchor learns, against a loop over MMDetection's rule; and samples of them."""

import pytest
import torch

from dynavit.tasks.detection.assign import IGNORED, NOTHING, assign, assign_usable
from dynavit.tasks.detection.sample import sample


def by_loop(overlaps, positive, negative, least):
    found = []
    for row in overlaps.tolist():
        most = max(row, default=0.0)
        found.append(row.index(most) if row and most >= positive else NOTHING if most < negative else IGNORED)
    for thing in range(overlaps.shape[1]):
        best = overlaps[:, thing].max().item()
        if best >= least and best > 0:
            for anchor in range(len(overlaps)):
                if overlaps[anchor, thing].item() == best:
                    found[anchor] = thing  # later things overwrite earlier ones
    return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("thresholds", [(0.5, 0.4, 0.0), (0.7, 0.3, 0.3), (0.5, 0.5, 0.5)])
def test_assignment_is_the_loops(seed, thresholds):
    generator = torch.Generator().manual_seed(seed)
    overlaps = torch.randint(11, (40, 5), generator=generator).double() / 10  # many ties
    overlaps[:, 3] *= 0.2  # a thing that only the last rule saves
    overlaps[:, 4] = 0  # one that nothing overlaps
    assert assign(overlaps, *thresholds).tolist() == by_loop(overlaps, *thresholds)


def test_the_rules_one_by_one():
    overlaps = torch.tensor([[0.6, 0.1], [0.45, 0.0], [0.3, 0.2], [0.0, 0.0]])
    assert assign(overlaps, 0.5, 0.4).tolist() == [0, IGNORED, 1, NOTHING]  # anchor 2 is the best that thing 1 has
    assert assign(overlaps, 0.5, 0.4, least=0.3).tolist() == [0, IGNORED, NOTHING, NOTHING]
    both = torch.tensor([[0.9, 0.8], [0.1, 0.8]])
    assert assign(both, 0.5, 0.4).tolist() == [1, 1]  # claimed by thing 1, though thing 0 overlaps it more
    assert assign(torch.zeros(3, 2), 0.5, 0.4).tolist() == [NOTHING] * 3  # things that nothing overlaps claim nothing
    assert assign(torch.zeros(3, 0), 0.5, 0.4).tolist() == [NOTHING] * 3
    assert assign(torch.zeros(0, 2), 0.5, 0.4).tolist() == []


def test_anchors_that_may_not_be_used_neither_learn_nor_win():
    overlaps = torch.tensor([[0.9], [0.2], [0.0]])
    found = assign_usable(overlaps, torch.tensor([False, True, True]), 0.5, 0.4)
    assert found.tolist() == [IGNORED, 0, NOTHING]


def test_torchvisions_matcher_agrees_where_the_rules_do():
    from dynavit.common.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    from torchvision.models.detection._utils import Matcher

    overlaps = torch.rand(60, 4, generator=torch.Generator().manual_seed(0))
    theirs = Matcher(0.7, 0.3, allow_low_quality_matches=False)(overlaps.T)
    assert torch.equal(assign(overlaps, 0.7, 0.3, least=2.0), theirs)


def test_samples_keep_their_shares():
    assigned = torch.tensor([3] * 50 + [NOTHING] * 200 + [IGNORED] * 30)
    things, nothing = sample(assigned, 64, 0.25)
    assert len(things) == 16 and len(nothing) == 48
    assert (assigned[things] >= 0).all() and (assigned[nothing] == NOTHING).all()
    assert len(things.unique()) == 16 and len(nothing.unique()) == 48
    few, rest = sample(torch.tensor([0, NOTHING, NOTHING]), 64, 0.25)
    assert few.tolist() == [0] and rest.tolist() == [1, 2]
    torch.manual_seed(5)
    first = sample(assigned, 64, 0.25)
    torch.manual_seed(5)
    again = sample(assigned, 64, 0.25)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], sample(assigned, 64, 0.25)[0])
