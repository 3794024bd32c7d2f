"""Fakes that tests may use, here and in projects that build on this one."""

from vllmfront.testing._fake_engine import REGISTRATION, FakeEngine

__all__ = ["REGISTRATION", "FakeEngine"]
