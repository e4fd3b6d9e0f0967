/*
 * Byte-level BPE from a Hugging Face tokenizer.json, and chat templates from tokenizer_config.json.
 */
#ifndef DS_MODEL_TOKENIZER_H
#define DS_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct tokenizer;

/* dir holds tokenizer.json and, for add_bos_token and chat, tokenizer_config.json.  DS_NOINPUT, DS_DATA. */
int tokenizer_open(struct tokenizer **t, const char *dir, struct ds_err *err);
int tokenizer_parse(struct tokenizer **t, const char *json, size_t n, const char *name, struct ds_err *err);
void tokenizer_free(struct tokenizer *t);

struct ids { uint32_t *v; size_t n, cap; }; /* starts zeroed */
bool ids_add(struct ids *ids, uint32_t id); /* false: no memory */
void ids_free(struct ids *ids);

/* Appends the ids of text (any bytes; what is no UTF-8 is refused with DS_DATA and its offset).  Added tokens in the
 * text are recognised. */
int tokenizer_encode(struct tokenizer *t, const char *text, size_t n, struct ids *out, struct ds_err *err);
size_t tokenizer_vocab(const struct tokenizer *t);         /* highest id + 1 */
int64_t tokenizer_id(const struct tokenizer *t, const char *token); /* of an added or base token by its content, -1 */
int64_t tokenizer_bos(const struct tokenizer *t);          /* -1: none; from tokenizer_config.json */
bool tokenizer_adds_bos(const struct tokenizer *t);

/* Decoding: the bytes of one id (special: also those of special tokens, else empty).  False for an id it does not have.
 */
bool tokenizer_bytes(const struct tokenizer *t, uint32_t id, bool special, const char **p, size_t *n);
/* The bytes that an id stands for in an answer's text, which stop strings are looked for in: those of special tokens
 * only where `special`, U+FFFD where there is no text. */
void tokenizer_text(const struct tokenizer *t, uint32_t id, bool special, const char **p, size_t *n);

/* A stream decoder that never splits a UTF-8 character: bytes of an unfinished one wait for the next id; what can never
 * become one turns into U+FFFD, and so does an id that has no text: a model's vocabulary may be larger than its
 * tokenizer.  Fails without memory only. */
struct detok { char pending[4]; size_t n; bool special; };
int detok_add(struct detok *d, const struct tokenizer *t, uint32_t id, struct buf *out, struct ds_err *err);
void detok_bytes(struct detok *d, const char *p, size_t n, struct buf *out);
void detok_end(struct detok *d, struct buf *out); /* what still waits, as U+FFFD */

/* messages: a JSON array of {"role", "content", ...} (jansson's json_t, as void *); renders the model's own template.
 * variables: further ones for the template (a JSON object, e.g. {"thinking": true}), or NULL.  DS_DATA where the
 * template refuses, DS_CONFIG where the model has none. */
int chat_render(const struct tokenizer *t, const void *messages, bool add_generation_prompt, const void *variables,
	struct buf *out, struct ds_err *err);

#endif
