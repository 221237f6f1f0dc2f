"""Where models compute. No test machine has a GPU: what is asked for is looked at instead."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from biphasic.model.device import on_compute_device


@pytest.mark.parametrize(("has_gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_the_gpu_is_used_where_there_is_one(has_gpu, device, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(nn.Module, "to", lambda model, to: asked.append(to) or model)
    model = nn.Linear(2, 2)
    assert on_compute_device(model) is model
    assert asked == [torch.device(device)]
