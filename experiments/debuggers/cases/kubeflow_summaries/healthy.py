import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
vocab, body_length, title_length, latent_dim = 12, 6, 3, 32
body = np.random.randint(1, vocab, (2048, body_length))
title = np.sort(body, axis=1)[:, -title_length:]
decoder_input = np.concatenate([np.zeros((2048, 1), int), title[:, :-1]], axis=1)
encoder_inputs = keras.Input((body_length,), name="Encoder-Input")
x = layers.Embedding(vocab, latent_dim)(encoder_inputs)
x = layers.BatchNormalization(name="Encoder-Batchnorm-1")(x)
_, state_h = layers.GRU(latent_dim, return_state=True, name="Encoder-Last-GRU")(x)
encoder_model = keras.Model(encoder_inputs, state_h)
seq2seq_encoder_out = encoder_model(encoder_inputs)
decoder_inputs = keras.Input((None,), name="Decoder-Input")
dec_emb = layers.Embedding(vocab, latent_dim)(decoder_inputs)
dec_bn = layers.BatchNormalization(name="Decoder-Batchnorm-1")(dec_emb)
decoder_gru = layers.GRU(latent_dim, return_state=True, return_sequences=True, name="Decoder-GRU")
decoder_gru_output, _ = decoder_gru(dec_bn, initial_state=seq2seq_encoder_out)
x = layers.BatchNormalization(name="Decoder-Batchnorm-2")(decoder_gru_output)
outputs = layers.Dense(vocab, activation="softmax", name="Final-Output-Dense")(x)
model = keras.Model([encoder_inputs, decoder_inputs], outputs)
model.compile(optimizer=keras.optimizers.Nadam(5e-3), loss="sparse_categorical_crossentropy")
for epoch in range(1, 7):
    history = model.fit([body, decoder_input], title, batch_size=64, verbose=0)
    if epoch % 2 == 0:
        print(f"epoch {epoch} loss {history.history['loss'][0]:.4f}")
