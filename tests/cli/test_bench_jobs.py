"""What a bench asks: new texts every time, set lengths, and flags that mean something."""

from itertools import islice

import pytest

from forerun.cli.bench.flags import numbers, whole_numbers
from forerun.cli.bench.jobs import LEAST_TOKENS, Job, answer_length, chosen, endless
from forerun.cli.bench.setups import BASELINES, check_names, of_one_machine, over_a_network
from forerun.cli.bench.worst import LEAST_PAIRS, pairs_of
from forerun.cli.prompts import Prompt
from forerun.errors import InvalidRequest

CODE, CHAT, CHAT_2 = Prompt("1", "code", "x"), Prompt("2", "chat", "y"), Prompt("3", "chat", "z")


def test_no_two_jobs_have_one_text_however_often_a_prompt_is_asked():
    jobs = list(islice(endless([CODE, CHAT], {CODE: 5, CHAT: 7}, 0), 9))
    assert len({job.messages for job in jobs}) == 9
    assert [job.num_tokens for job in jobs[:4]] == [5, 7, 5, 7]
    assert jobs[0].messages == (("user", "x"),)
    assert all(job.messages[0][1].endswith(job.prompt.text) for job in jobs)


def test_categories_take_turns_and_may_be_chosen():
    assert chosen([CHAT, CHAT_2, CODE], [], None) == [CHAT, CODE, CHAT_2]
    assert chosen([CHAT, CHAT_2, CODE], ["chat"], None) == [CHAT, CHAT_2]
    assert chosen([CHAT, CHAT_2, CODE], [], 2) == [CHAT, CODE]
    with pytest.raises(InvalidRequest, match="no prompt has category rag; there are chat, code"):
        chosen([CHAT, CODE], ["rag"], None)


def test_an_answer_keeps_its_own_length_but_is_never_a_few_tokens():
    assert answer_length(40, 64) == 40
    assert answer_length(1, 64) == LEAST_TOKENS
    assert answer_length(1, 4) == 4


def test_numbers_are_read_once_each_in_order():
    assert numbers("0,5,2.5,5", flag="f", least=0, most=10) == [0, 5, 2.5]
    assert whole_numbers("8,1,8", flag="f", least=1, most=10) == [8, 1]


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "11", "nan", "inf", "1;2"])
def test_numbers_that_mean_nothing_are_refused_in_one_line(text):
    with pytest.raises(InvalidRequest, match="--x takes") as refused:
        whole_numbers(text, flag="--x", least=0, most=10)
    assert "\n" not in refused.value.message


def test_half_a_session_is_refused():
    with pytest.raises(InvalidRequest, match="whole"):
        whole_numbers("1.5", flag="--x", least=0, most=10)


def test_every_set_up_has_a_name_of_its_own_and_plain_is_first():
    for set_ups in (of_one_machine("m"), over_a_network("m"), of_one_machine(None), over_a_network(None)):
        names = [one.name for one in set_ups]
        assert names[0] == "plain"
        assert len({*names, *BASELINES}) == len(names) + len(BASELINES)


def test_only_set_ups_behind_the_relay_are_remote_and_only_one_takes_turns():
    for set_ups in (of_one_machine("m"), over_a_network("m")):
        assert [one.name for one in set_ups if one.relayed] == ["remote", "synchronous"]
        assert [one.name for one in set_ups if one.source.startswith("sync:")] == ["synchronous"]
        assert [one.name for one in set_ups if one.source.startswith("model:") and one.no_draft] == (
            ["model-beside"] if "model" in {one.name for one in set_ups} else []
        )


def test_an_unknown_set_up_is_refused_with_those_there_are():
    check_names(["plain", "engine"], of_one_machine(None), tuple(BASELINES))
    with pytest.raises(InvalidRequest, match="no set-up model here; there are plain, plain-beside"):
        check_names(["model"], of_one_machine(None))


def test_a_worst_case_has_never_fewer_than_five_pairs():
    assert pairs_of([CODE], 1) == LEAST_PAIRS == 5
    assert pairs_of([CODE, CHAT], 4) == 8


def test_a_job_draws_as_it_is_told():
    assert Job(CODE, 3, temperature=1.5, seed=4) != Job(CODE, 3, temperature=1.5, seed=5)
