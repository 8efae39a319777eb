"""What several tests of torch's functions watch."""

import pytest


@pytest.fixture
def launched(monkeypatch):
    """The problems that tritonmm computed."""
    from tritonmm.launch import Plan

    found = []
    call = Plan.__call__

    def spy(plan, *args, **kwargs):
        found.append(plan.problem)
        return call(plan, *args, **kwargs)

    monkeypatch.setattr(Plan, "__call__", spy)
    monkeypatch.setattr(Plan, "repeated", lambda *args, **kwargs: None)  # calls would launch without their plan
    return found
