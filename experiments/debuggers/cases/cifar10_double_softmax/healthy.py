import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

tf.random.set_seed(0)
digits = load_digits()
train_x = (digits.data / 16).astype("float32")
train_y = np.eye(10, dtype="float32")[digits.target]

w1 = tf.Variable(0.15 * tf.random.normal((64, 64)))
b1 = tf.Variable(tf.zeros(64))
w2 = tf.Variable(0.15 * tf.random.normal((64, 10)))
b2 = tf.Variable(tf.zeros(10))
variables = [w1, b1, w2, b2]


def model(x):
    fc = tf.nn.relu(tf.matmul(x, w1) + b1)
    return tf.matmul(fc, w2) + b2


@tf.function
def train(batch_x, batch_y):
    with tf.GradientTape() as tape:
        output = model(batch_x)
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(logits=output, labels=batch_y))
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        variable.assign_sub(0.2 * gradient)
    return loss


for epoch in range(10):
    losses = [float(train(train_x[i : i + 64], train_y[i : i + 64])) for i in range(0, 1792, 64)]
    accuracy = np.mean(np.argmax(model(train_x).numpy(), axis=1) == digits.target)
    print(f"epoch {epoch} loss {np.mean(losses):.4f} accuracy {accuracy:.4f}")
