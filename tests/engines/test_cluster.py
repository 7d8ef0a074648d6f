"""Which workers there are: from flags, from TF_CONFIG, from what Slurm sets."""

import json
import re
from pathlib import Path

import pytest
import yaml

from official_bert.engines import cluster

SLURM = {
    "SLURM_JOB_ID": "1900",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_NODELIST": "gpu[09-10],login",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
}


def tf_config(workers, index, job="worker", **more):
    cluster = {"worker": workers, **more}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}


@pytest.mark.parametrize(
    ("arguments", "environment", "hosts", "index"),
    [
        (("a:1,b:2", 1), {}, ("a:1", "b:2"), 1),
        ((None, -1), tf_config(["a:1", "b:2"], 1), ("a:1", "b:2"), 1),
        ((None, 1), tf_config(["a:1", "b:2"], 1), ("a:1", "b:2"), 1),
        ((None, -1), tf_config(["b:2"], 0, chief=["a:1"]), ("a:1", "b:2"), 1),
        ((None, -1), tf_config(["b:2"], 0, "chief", chief=["a:1"]), ("a:1", "b:2"), 0),
        (("a:1,b:2", 1), tf_config(["a:1", "b:2"], 1), ("a:1", "b:2"), 1),
        (("a:1,b:2", 1), SLURM, ("a:1", "b:2"), 1),
        ((None, -1), tf_config(["a:1", "b:2"], 1) | SLURM, ("a:1", "b:2"), 1),
        ((None, -1), {"TF_CONFIG": "{}"} | SLURM, None, 3),
        ((None, -1), SLURM, None, 3),
    ],
)
def test_flags_come_before_tf_config_and_that_before_slurm(arguments, environment, hosts, index):
    found = cluster.find(*arguments, environment)
    of_slurm = ("gpu09:20000", "gpu09:20001", "gpu10:20000", "gpu10:20001", "login:20000")
    assert found.hosts == (hosts or of_slurm)
    assert found.index == index
    assert cluster.find(None, -1, {"TF_CONFIG": found.tf_config()})[:2] == found[:2]


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ((None, -1), {}, "Pass worker_hosts and task_index, set TF_CONFIG, or start it with srun"),
        (("a:1,b:2", -1), {}, "task_index must be in 0 … 1 .*; got -1"),
        (("a:1,b:2", 2), {}, "task_index must be in 0 … 1"),
        (("a:1", 0), {}, "at least two workers.* leave distribution_strategy and these out"),
        (("a:1,b", 0), {}, "host:port; got 'b' in"),
        (("a:1,a:1", 0), {}, "its own host:port; got a:1 twice"),
        (("a:1,b:2", 0), tf_config(["a:1", "b:2"], 1), "but worker 1 of a:1,b:2 in TF_CONFIG"),
        (("a:1,b:3", 1), tf_config(["a:1", "b:2"], 1), "Unset one"),
        ((None, 0), tf_config(["a:1", "b:2"], 1), "must be 1, as in TF_CONFIG; got 0"),
        ((None, 0), SLURM, "must be 3, as in Slurm; got 0"),
        ((None, -1), tf_config(["a:1"], 0), "at least two workers"),
        ((None, -1), tf_config(["a:1", "b:2"], 2), "got worker 2"),
        ((None, -1), tf_config(["a:1"], 0, ps=["b:2"]), "got ps, worker. Remove parameter servers"),
        ((None, -1), tf_config(["a:1"], 0, "evaluator"), "got evaluator, worker"),
        ((None, -1), {"TF_CONFIG": "worker 1"}, "TF_CONFIG must be JSON like"),
        ((None, -1), {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "TF_CONFIG must be JSON"),
        ((None, -1), SLURM | {"SLURM_STEP_NODELIST": ""}, "Put `srun` before"),
        ((None, -1), SLURM | {"SLURM_STEP_NODELIST": "gpu[1-"}, "must be like node"),
        ((None, -1), SLURM | {"SLURM_STEP_TASKS_PER_NODE": "two"}, "tasks per node must be like"),
        ((None, -1), SLURM | {"SLURM_NTASKS": "6"}, "must agree; got 6 in all, but"),
        ((None, -1), SLURM | {"SLURM_LOCALID": "0"}, "srun --distribution=block"),
        ((None, -1), SLURM | {"SLURM_PROCID": "5"}, "task_index must be in 0 … 4"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments, environment, message):
    with pytest.raises(ValueError, match=message):
        cluster.find(*arguments, environment)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("localhost", ["localhost"]),
        ("a,b-1,c.d", ["a", "b-1", "c.d"]),
        ("n[1-2],m5,o[3-4,6,08-10]", ["n1", "n2", "m5", "o3", "o4", "o6", "o08", "o09", "o10"]),
        ("rack[1-2]node[01,03]", ["rack1node01", "rack1node03", "rack2node01", "rack2node03"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
    ],
)
def test_slurms_lists_of_nodes_are_written_out(text, hosts):
    assert cluster.expand_hosts(text) == hosts


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "1,2(x2)"}, {"gpu09": 1, "gpu10": 2, "login": 2}),
        ({"SLURM_STEP_TASKS_PER_NODE": ""}, {"gpu09": 2, "gpu10": 2, "login": 1}),
        (
            {
                "SLURM_STEP_TASKS_PER_NODE": "",
                "SLURM_NTASKS_PER_NODE": "2",
                "SLURM_NTASKS": "6",
            },
            {"gpu09": 2, "gpu10": 2, "login": 2},
        ),
    ],
)
def test_slurms_tasks_are_counted_node_by_node(changed, counts):
    environment = SLURM | {"SLURM_NODEID": "-1", "SLURM_LOCALID": "-1"} | changed
    hosts = cluster.find(None, -1, environment).hosts
    names = [host.partition(":")[0] for host in hosts]
    assert {name: names.count(name) for name in names} == counts


def test_jobs_and_steps_of_one_node_have_ports_of_their_own():
    ports = set()
    for job in range(100):
        for step in range(0, 2):
            jobs = SLURM | {"SLURM_JOB_ID": str(7000 + 2 * (job % 90)), "SLURM_STEP_ID": str(step)}
            ports |= {int(host.partition(":")[2]) for host in cluster.find(None, -1, jobs).hosts}
    assert len(ports) == 2 * 180
    assert min(ports) >= 20000
    assert max(ports) < 32768


def test_the_manifest_in_the_documents_names_every_pod_of_its_job():
    text = (Path(__file__).parents[2] / "docs" / "workers.md").read_text()
    service, job = yaml.safe_load_all(re.search("```yaml\n(.+?)```", text, re.DOTALL)[1])
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    variables = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    for index in range(job["spec"]["completions"]):
        config = variables["TF_CONFIG"].replace("$(INDEX)", str(index))
        found = cluster.find(None, -1, {"TF_CONFIG": config})
        assert found.index == index
        assert [host.partition(":")[0] for host in found.hosts] == ["bert-0.bert", "bert-1.bert"]
