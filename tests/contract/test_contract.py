"""The run contract, kept by each of the four flows and by one that only the tests have."""

from __future__ import annotations

from contract.flows_under_test import BuildProbeRows, CountWords, PackSft, SampleCorpus, TrainTokenizer
from contract.suite import FlowContract


class TestPackSft(PackSft, FlowContract):
    pass


class TestSampleCorpus(SampleCorpus, FlowContract):
    pass


class TestTrainTokenizer(TrainTokenizer, FlowContract):
    pass


class TestBuildProbeRows(BuildProbeRows, FlowContract):
    pass


class TestCountWords(CountWords, FlowContract):
    pass
