"""The distances between a student and its teacher, position by position."""

import jax
import jax.numpy as jnp


def soft_divergence(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """Return T^2 KL(softmax(teacher / T), softmax(student / T)), logits [... V] -> float32 [...].

    The factor keeps the size of the gradient the same for every temperature T (Hinton et al. 2015, section 2.1).
    """
    log_student = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
    log_teacher = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
    return temperature**2 * jnp.sum(jnp.exp(log_teacher) * (log_teacher - log_student), axis=-1)


def soft_cross_entropy(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """Return -sum softmax(teacher / T) log softmax(student / T), logits [... V] -> float32 [...]."""
    log_student = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
    return -jnp.sum(jax.nn.softmax(teacher.astype(jnp.float32) / temperature) * log_student, axis=-1)


def cosine_distance(student: jax.Array, teacher: jax.Array) -> jax.Array:
    """Return 1 - cos(student, teacher), vectors [... D] -> float32 [...]."""
    return 1 - jnp.sum(normalize(student) * normalize(teacher), axis=-1)


def normalize(x: jax.Array) -> jax.Array:
    """Return vectors [... D] divided by their norms, float32."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x), axis=-1, keepdims=True), 1e-24))


def squared_distance(student: jax.Array, teacher: jax.Array) -> jax.Array:
    """Return the mean square of the differences of vectors, [... D] -> float32 [...]."""
    return jnp.mean(jnp.square(student.astype(jnp.float32) - teacher.astype(jnp.float32)), axis=-1)
