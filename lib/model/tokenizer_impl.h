/*
 * Inside of the tokenizer: shared by tokenizer*.c and chat.c.
 */
#ifndef DS_MODEL_TOKENIZER_IMPL_H
#define DS_MODEL_TOKENIZER_IMPL_H

#include <jansson.h>

#include "model/bpe.h"
#include "model/tokenizer.h"

enum {
	/* ids from a file: far over any vocabulary, so that a table by id stays small */
	TOKENIZER_MAX_ID = 1 << 21,
	TOKENIZER_MAX_SPLITS = 16,
	TOKENIZER_MAX_ADDED_BYTES = 1024, /* of one added token */
	TOKENIZER_MAX_PATTERN = 1 << 15,
};

/* ---- regular expressions of the pre-tokenizer (tokenizer_regex.c) ---- */

/* Rewrites a pattern of the Rust world for PCRE2: \s and \S become the Unicode property White_Space; what PCRE2 would
 * read in another way is refused.  name: for messages. */
int regex_translate(const char *p, size_t n, const char *name, struct buf *out, struct ds_err *err);

/* ---- pre-tokenizer (tokenizer_pre.c) ---- */

struct pre; /* a row of splits, each piece kept ("Isolated") */

int pre_parse(struct pre **pre, const json_t *json, const char *name, struct ds_err *err);
void pre_free(struct pre *pre);
/* Calls fn for every piece of the valid UTF-8 text, in order; stops at a non-zero return. */
typedef int pre_fn(void *ctx, const char *p, size_t n, struct ds_err *err);
int pre_split(struct pre *pre, const char *text, size_t n, pre_fn *fn, void *ctx, struct ds_err *err);

/* ---- added tokens (tokenizer_added.c) ---- */

struct added { char *text; size_t len; uint32_t id; };

struct added_set {
	struct added *v;    /* sorted by bytes once added_sort was called */
	size_t n, cap;
	uint8_t first[256]; /* some token begins with this byte */
};

int added_put(struct added_set *s, const char *text, size_t len, uint32_t id, struct ds_err *err);
void added_sort(struct added_set *s);
void added_free(struct added_set *s);
/* The longest token at p, or NULL. */
const struct added *added_at(const struct added_set *s, const char *p, size_t n);

/* ---- the tokenizer ---- */

struct token_text {
	uint32_t off, len;         /* within the arena: the bytes it stands for */
	uint32_t name_off, name_len; /* its content in tokenizer.json */
	bool known, added, special;
};

struct tokenizer {
	struct token_text *tokens; /* [n], by id */
	size_t n, cap;
	struct buf arena;
	/* content -> id: open addressing, [names_mask + 1]; id UINT32_MAX: free */
	struct token_name { uint32_t id, tag; } *names;
	size_t names_mask;
	struct bpe bpe;
	bool ignore_merges;        /* a piece that is a token as a whole is not merged up */
	struct added_set raw, normal; /* added tokens, "normalized": false and true: the first are looked for first */
	struct pre *pre;
	struct bpe_work work;
	/* tokenizer_config.json */
	int64_t bos;
	bool add_bos;
	char *special[4];          /* bos_token, eos_token, pad_token, unk_token; NULL: none */
	char *chat_template;       /* NULL: none */
	size_t chat_template_len;
	char *name;                /* of the directory or file, for messages */
};

extern const char *const tokenizer_special_names[4];

/* tokenizer_config.json and chat_template.jinja of dir, where there are any (tokenizer_config.c). */
int tokenizer_config_load(struct tokenizer *t, const char *dir, struct ds_err *err);

#endif
