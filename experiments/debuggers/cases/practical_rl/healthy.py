import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
gamma, envs = 0.5, 64


class Plane:
    def __init__(self):
        self.state = np.random.uniform(-1, 1, (envs, 2)).astype("float32")

    def step(self, action):
        reward = (action == (self.state[:, 0] * self.state[:, 1] > 0)).astype("float32")
        self.state = np.random.uniform(-1, 1, (envs, 2)).astype("float32")
        return self.state, reward


def make_network():
    inputs = keras.Input((2,))
    x = keras.layers.Dense(64, activation="relu")(inputs)
    x = keras.layers.Dense(64, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(2)(x))


network = make_network()
optimizer = keras.optimizers.Adam(3e-3)


@tf.function
def train(states, actions, rewards, next_states):
    target = rewards + gamma * tf.reduce_max(network(next_states), 1)
    with tf.GradientTape() as tape:
        chosen = tf.gather(network(states), actions, axis=1, batch_dims=1)
        loss = tf.reduce_mean(tf.square(chosen - tf.stop_gradient(target)))
    gradients = tape.gradient(loss, network.trainable_variables)
    optimizer.apply_gradients(zip(gradients, network.trainable_variables))
    return loss


env, epsilon, mean_reward = Plane(), 0.5, 0.5
for step in range(1, 1201):
    states = env.state
    greedy = network(states).numpy().argmax(1)
    actions = np.where(np.random.rand(envs) < epsilon, np.random.randint(0, 2, envs), greedy)
    next_states, rewards = env.step(actions)
    loss = train(states, actions, rewards, next_states)
    epsilon = max(0.05, epsilon * 0.997)
    mean_reward = 0.98 * mean_reward + 0.02 * rewards.mean()
    if step % 300 == 0:
        print(f"step {step} loss {float(loss):.4f} mean reward {mean_reward:.3f}")
