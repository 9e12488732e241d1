import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)


def step(state, action):
    state = np.clip(state + 0.3 * action + 0.05 * np.random.randn(), -1, 1)
    done = abs(state) > 0.9
    return state, float(state > 0.9), float(done)


class DDPG:
    def __init__(self):
        self.gamma = 0.99
        self.tau = 0.05
        self.critic_model = self.get_critic()
        self.target_critic = self.get_critic()
        self.target_critic.set_weights(self.critic_model.get_weights())
        self.critic_optimizer = keras.optimizers.Adam(5e-3)

    def get_critic(self):
        return keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)]
        )

    @tf.function
    def train_critic(self, state, action, reward, next_state, done):
        next_action = tf.ones_like(next_state)
        target_q = self.target_critic(tf.concat([next_state, next_action], axis=1), training=True)
        y = reward + self.gamma * target_q
        with tf.GradientTape() as tape:
            critic_value = self.critic_model(tf.concat([state, action], axis=1), training=True)
            critic_loss = tf.math.reduce_mean(tf.math.square(y - critic_value))
        gradient = tape.gradient(critic_loss, self.critic_model.trainable_variables)
        self.critic_optimizer.apply_gradients(zip(gradient, self.critic_model.trainable_variables))
        for old, new in zip(self.target_critic.variables, self.critic_model.variables):
            old.assign(old + self.tau * (new - old))
        return critic_loss, tf.reduce_max(critic_value)


agent = DDPG()
memory, state = [], 0.0
for _ in range(2000):
    action = np.random.uniform(-1, 1)
    next_state, reward, done = step(state, action)
    memory.append((state, action, reward, next_state, done))
    state = np.random.uniform(-0.5, 0.5) if done else next_state
memory = np.array(memory, dtype="float32")
for update in range(600):
    batch = memory[np.random.randint(0, len(memory), 64)]
    loss, value = agent.train_critic(*(tf.constant(batch[:, i : i + 1]) for i in range(5)))
    if update % 100 == 99:
        print(f"update {update} critic loss {float(loss):.4f} largest value {float(value):.3f} of at most 1")
