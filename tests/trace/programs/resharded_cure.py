"""Arguments are sharded as the step wants them, except small ones and one to be gathered."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("data",))


def local_step(weights, batch):
    return jax.lax.pmean(jnp.tanh(batch @ weights).mean(), "data")


spread = jax.shard_map(local_step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())


@jax.jit
def step(weights, batch):
    return spread(weights, batch)  # wanted


@jax.jit
def total(table):
    return jax.lax.with_sharding_constraint(table, NamedSharding(mesh, P("data"))).sum()


weights = jax.device_put(np.ones((512, 8), np.float32), NamedSharding(mesh, P()))
batch = jax.device_put(np.ones((1024, 512), np.float32), NamedSharding(mesh, P("data")))
for _ in range(3):
    print(step(weights, batch))  # here
print(total(batch))  # and here


@jax.jit
def gathered(table, small):
    whole = jax.lax.with_sharding_constraint(table, NamedSharding(mesh, P()))
    return whole.sum() + spread(jnp.ones((8, 8)), small)


small = jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P(None, "data")))
print(gathered(batch, small))
