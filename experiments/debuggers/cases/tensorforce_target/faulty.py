import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
num_states = 8


class QModel:
    def __init__(self, discount):
        self.discount = discount
        self.training_network = self.network()
        self.target_network = self.network()
        self.training_variables = self.training_network.trainable_variables
        self.target_variables = self.training_network.trainable_variables
        self.optimizer = keras.optimizers.Adam(5e-3)

    def network(self):
        return keras.Sequential(
            [keras.Input((num_states,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(2)]
        )

    def update_target(self):
        for target, training in zip(self.target_variables, self.training_variables):
            target.assign(training)

    @tf.function
    def update(self, states, actions, rewards, next_states, terminals):
        next_values = tf.reduce_max(self.target_network(next_states), axis=1)
        targets = rewards + self.discount * next_values * (1 - terminals)
        with tf.GradientTape() as tape:
            values = tf.reduce_sum(self.training_network(states) * tf.one_hot(actions, 2), axis=1)
            loss = tf.reduce_mean(tf.square(targets - values))
        gradients = tape.gradient(loss, self.training_variables)
        self.optimizer.apply_gradients(zip(gradients, self.training_variables))
        return loss


model = QModel(discount=0.9)
model.update_target()
one_hot = np.eye(num_states, dtype="float32")
for timestep in range(1, 601):
    states = np.random.randint(0, num_states - 1, 64)
    actions = np.random.randint(0, 2, 64)
    next_states = np.maximum(states + 2 * actions - 1, 0)
    terminals = (next_states == num_states - 1).astype("float32")
    batch = (one_hot[states], actions, terminals, one_hot[next_states], terminals)
    loss = model.update(*(tf.constant(column) for column in batch))
    if timestep % 20 == 0:
        model.update_target()
    if timestep % 100 == 0:
        value = np.max(model.training_network(one_hot[:1]).numpy())
        print(f"timestep {timestep} loss {float(loss):.5f} value of state 0 {value:.3f}, exact {0.9**6:.3f}")
