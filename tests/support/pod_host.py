"""A host of `pod`: a TensorFlow server, which knows nothing of official_bert.

python pod_host.py HOST:PORT,HOST:PORT INDEX
"""

import sys

import tensorflow as tf

hosts, index = sys.argv[1].split(","), int(sys.argv[2])
server = tf.distribute.Server(
    tf.train.ClusterSpec({"worker": hosts}), job_name="worker", task_index=index, protocol="grpc"
)
print("ready", flush=True)
server.join()
