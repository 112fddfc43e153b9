"""The run contract on a real Prefect server: two drivers at once, runners, workers."""

from __future__ import annotations

from contract.flows_under_test import BuildProbeRows, CountWords, PackSft, SampleCorpus, TrainTokenizer
from contract.suite import PrefectContract


class TestPackSft(PackSft, PrefectContract):
    pass


class TestSampleCorpus(SampleCorpus, PrefectContract):
    pass


class TestTrainTokenizer(TrainTokenizer, PrefectContract):
    pass


class TestBuildProbeRows(BuildProbeRows, PrefectContract):
    pass


class TestCountWords(CountWords, PrefectContract):
    pass
