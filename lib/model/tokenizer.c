/* tokenizer.json: what is read, what is refused, and encoding. */
#include "base/utf8.h"
#include "model/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "model/file.h"
#include "model/tokenizer_impl.h"

#define NO_ID UINT32_MAX
enum { TOKENIZER_MAX_FILE = 128 << 20 };

bool ids_add(struct ids *ids, uint32_t id)
{
	if (ids->n == ids->cap) {
		size_t cap = ids->cap ? ids->cap * 2 : 64;
		void *v = mem_realloc(ids->v, cap, sizeof(*ids->v));
		if (!v)
			return false;
		ids->v = v;
		ids->cap = cap;
	}
	ids->v[ids->n++] = id;
	return true;
}

void ids_free(struct ids *ids)
{
	free(ids->v);
	memset(ids, 0, sizeof(*ids));
}

/* ---- tokens by id and by content ---- */

/* The slot of a content, or the free one where it would go.  A part of the hash beside the id tells most others apart
 * at once. */
static struct token_name *name_slot(const struct tokenizer *t, const char *s, size_t n, uint32_t *tag)
{
	uint64_t hash = XXH3_64bits(s, n);
	size_t i = (size_t)hash & t->names_mask;

	*tag = (uint32_t)(hash >> 32);
	for (; t->names[i].id != NO_ID; i = (i + 1) & t->names_mask) {
		const struct token_text *k = &t->tokens[t->names[i].id];
		if (t->names[i].tag == *tag && k->name_len == n && !memcmp(t->arena.p + k->name_off, s, n))
			return &t->names[i];
	}
	return &t->names[i];
}

static uint32_t name_id(const struct tokenizer *t, const char *s, size_t n)
{
	uint32_t tag;

	return t->names ? name_slot(t, s, n, &tag)->id : NO_ID;
}

int64_t tokenizer_id(const struct tokenizer *t, const char *token)
{
	uint32_t id = name_id(t, token, strlen(token));

	return id == NO_ID ? -1 : (int64_t)id;
}

size_t tokenizer_vocab(const struct tokenizer *t) { return t->n; }
int64_t tokenizer_bos(const struct tokenizer *t) { return t->bos; }
bool tokenizer_adds_bos(const struct tokenizer *t) { return t->add_bos; }

/* Byte-level BPE writes every byte as a printable character: printable Latin-1 as itself, the others from U+0100 on, in
 * order. */
static int char_byte(uint32_t c)
{
	if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
		return (int)c;
	if (c < 256 || c > 256 + 67)
		return -1;
	c -= 256;
	return (int)(c < 33 ? c : c < 67 ? c - 33 + 127 : 173);
}

/* Appends the bytes that a token's content spells; as it is if not all of it is in the alphabet. */
static void spell(struct buf *b, const char *s, size_t n)
{
	size_t start = b->len, len;

	for (size_t i = 0; i < n; i += len) {
		int byte = char_byte(utf8_get(s + i, &len));
		char c = (char)byte;
		if (byte < 0) {
			b->len = start;
			buf_add(b, s, n);
			return;
		}
		buf_add(b, &c, 1);
	}
}

static int tokens_reserve(struct tokenizer *t, size_t n, struct ds_err *err)
{
	size_t cap = t->cap ? t->cap : 1024;
	void *v;

	while (cap < n)
		cap *= 2;
	if (cap == t->cap)
		return 0;
	v = mem_realloc(t->tokens, cap, sizeof(*t->tokens));
	if (!v)
		return err_nomem(err, cap * sizeof(*t->tokens), "the vocabulary");
	t->tokens = v;
	memset(t->tokens + t->cap, 0, (cap - t->cap) * sizeof(*t->tokens));
	t->cap = cap;
	return 0;
}

/* A new token; the caller has checked that neither its id nor its content is taken. */
static int put_token(struct tokenizer *t, const char *s, size_t n, uint32_t id, bool added, struct ds_err *err)
{
	struct token_name *slot;
	struct token_text *k;
	uint32_t tag;

	if (tokens_reserve(t, (size_t)id + 1, err))
		return err->code;
	if (id >= t->n)
		t->n = (size_t)id + 1;
	k = &t->tokens[id];
	k->name_off = (uint32_t)t->arena.len;
	k->name_len = (uint32_t)n;
	buf_add(&t->arena, s, n);
	k->off = k->name_off;
	if (!added) {
		k->off = (uint32_t)t->arena.len;
		spell(&t->arena, s, n);
	}
	if (t->arena.nomem)
		return err_nomem(err, n, "the vocabulary");
	k->len = added ? k->name_len : (uint32_t)(t->arena.len - k->off);
	k->known = true;
	slot = name_slot(t, s, n, &tag);
	slot->tag = tag;
	slot->id = id;
	return 0;
}

static int names_init(struct tokenizer *t, size_t count, struct ds_err *err)
{
	size_t size = 64;

	while (size < count * 2)
		size *= 2;
	t->names = mem_array(size, sizeof(*t->names));
	if (!t->names)
		return err_nomem(err, size * sizeof(*t->names), "the vocabulary");
	memset(t->names, 0xff, size * sizeof(*t->names));
	t->names_mask = size - 1;
	return 0;
}

/* ---- reading the file ---- */

static int check_keys(const struct tokenizer *t, const json_t *o, const char *const *keys, const char *what,
	struct ds_err *err)
{
	const char *key;
	json_t *v;

	if (!json_is_object(o))
		return err_set(err, DS_DATA, "'%s': %s is no object", t->name, what);
	json_object_foreach((json_t *)(uintptr_t)o, key, v) {
		size_t i = 0;
		while (keys[i] && strcmp(keys[i], key))
			i++;
		if (!keys[i])
			return err_set(err, DS_DATA, "'%s': unknown field '%s' of %s", t->name, key, what);
	}
	return 0;
}

static int check_id(const struct tokenizer *t, const json_t *v, const char *token, struct ds_err *err)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= TOKENIZER_MAX_ID)
		return err_set(err, DS_DATA, "'%s': id of token '%s' is not in 0..%d", t->name, token,
			TOKENIZER_MAX_ID - 1);
	return 0;
}

static int read_vocab(struct tokenizer *t, const json_t *vocab, struct ds_err *err)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)vocab, key, v) {
		uint32_t id;
		if (check_id(t, v, key, err))
			return err->code;
		id = (uint32_t)json_integer_value(v);
		if (id < t->n && t->tokens[id].known)
			return err_set(err, DS_DATA, "'%s': id %u belongs to two tokens, the second is '%s'", t->name,
				id, key);
		if (put_token(t, key, strlen(key), id, false, err))
			return err->code;
	}
	for (unsigned c = 0; c < 324; c++) {
		char s[4];
		size_t n = utf8_put(c, s);
		int byte = char_byte(c);
		uint32_t id;
		if (byte < 0)
			continue;
		id = name_id(t, s, n);
		if (id == NO_ID)
			return err_set(err, DS_DATA, "'%s': no token for the byte 0x%02x", t->name, (unsigned)byte);
		t->bpe.byte_id[byte] = id;
	}
	return 0;
}

/* "a b" or ["a", "b"] */
static bool merge_parts(const json_t *m, const char *part[2], size_t len[2])
{
	const char *s = json_string_value(m), *space;
	size_t n = json_string_length(m);

	if (s) {
		space = memchr(s, ' ', n);
		if (!space)
			return false;
		part[0] = s;
		len[0] = (size_t)(space - s);
		part[1] = space + 1;
		len[1] = n - len[0] - 1;
		return !memchr(part[1], ' ', len[1]);
	}
	for (size_t i = 0; i < 2; i++) {
		part[i] = json_string_value(json_array_get(m, i));
		len[i] = json_string_length(json_array_get(m, i));
	}
	return json_array_size(m) == 2 && part[0] && part[1];
}

static int read_merge(struct tokenizer *t, const json_t *m, size_t rank, struct buf *b, struct ds_err *err)
{
	const char *part[2];
	size_t len[2];
	uint32_t id[3];

	if (!merge_parts(m, part, len))
		return err_set(err, DS_DATA, "'%s': merge %zu is not two tokens", t->name, rank);
	b->len = 0;
	for (size_t i = 0; i < 2; i++) {
		id[i] = name_id(t, part[i], len[i]);
		buf_add(b, part[i], len[i]);
	}
	if (b->nomem)
		return err_nomem(err, len[0] + len[1], "merges");
	id[2] = name_id(t, b->p, b->len);
	for (size_t i = 0; i < 3; i++)
		if (id[i] == NO_ID)
			return err_set(err, DS_DATA, "'%s': merge %zu: no token '%.*s' in the vocabulary", t->name,
				rank, (int)(i < 2 ? len[i] : b->len), i < 2 ? part[i] : b->p);
	bpe_put(&t->bpe, id[0], id[1], (uint32_t)rank, id[2]);
	return 0;
}

static int read_merges(struct tokenizer *t, const json_t *merges, struct ds_err *err)
{
	struct buf b = { 0 };
	size_t i, n = json_array_size(merges);
	json_t *m;
	int rc;

	if (n > (size_t)TOKENIZER_MAX_ID * 4)
		return err_set(err, DS_DATA, "'%s': %zu merges are too many", t->name, n);
	rc = bpe_init(&t->bpe, n, err);
	json_array_foreach(merges, i, m) {
		if (rc)
			break;
		rc = read_merge(t, m, i, &b, err);
	}
	buf_free(&b);
	return rc;
}

/* What would change the result has to have the one value that is known. */
static int check_model(const struct tokenizer *t, const json_t *model, struct ds_err *err)
{
	static const char *const keys[] = { "type", "dropout", "unk_token", "continuing_subword_prefix",
	"end_of_word_suffix", "fuse_unk",
		"byte_fallback", "ignore_merges", "vocab", "merges", NULL };
	static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
	const char *type = json_string_value(json_object_get(model, "type"));
	const json_t *v;

	if (check_keys(t, model, keys, "'model'", err))
		return err->code;
	if (!type || strcmp(type, "BPE"))
		return err_set(err, DS_DATA, "'%s': unknown model type '%s': only 'BPE' is known", t->name, type ?
			type : "(none)");
	v = json_object_get(model, "dropout");
	if (v && !json_is_null(v) && json_number_value(v) != 0.0)
		return err_set(err, DS_DATA, "'%s': model with 'dropout'", t->name);
	for (size_t i = 0; i < ARRAY_LEN(affixes); i++) {
		v = json_object_get(model, affixes[i]);
		if (v && !json_is_null(v) && !(json_is_string(v) && !json_string_length(v)))
			return err_set(err, DS_DATA, "'%s': model with '%s'", t->name, affixes[i]);
	}
	if (json_is_true(json_object_get(model, "byte_fallback")))
		return err_set(err, DS_DATA, "'%s': model with 'byte_fallback'", t->name);
	if (!json_is_object(json_object_get(model, "vocab")))
		return err_set(err, DS_DATA, "'%s': model without 'vocab'", t->name);
	if (!json_is_array(json_object_get(model, "merges")))
		return err_set(err, DS_DATA, "'%s': model without 'merges'", t->name);
	return 0;
}

static int read_added_one(struct tokenizer *t, const json_t *a, struct ds_err *err)
{
	static const char *const keys[] = { "id", "content", "single_word", "lstrip", "rstrip", "normalized",
		"special", NULL };
	static const char *const off[] = { "single_word", "lstrip", "rstrip" };
	const char *s = json_string_value(json_object_get(a, "content"));
	size_t n = json_string_length(json_object_get(a, "content"));
	struct token_text *k;
	uint32_t id, there;

	if (check_keys(t, a, keys, "an added token", err))
		return err->code;
	if (!s || !n || n > TOKENIZER_MAX_ADDED_BYTES)
		return err_set(err, DS_DATA, "'%s': added token whose 'content' is not a string of 1..%d bytes",
			t->name, TOKENIZER_MAX_ADDED_BYTES);
	if (check_id(t, json_object_get(a, "id"), s, err))
		return err->code;
	for (size_t i = 0; i < ARRAY_LEN(off); i++)
		if (json_is_true(json_object_get(a, off[i])))
			return err_set(err, DS_DATA, "'%s': added token '%s' with '%s'", t->name, s, off[i]);
	id = (uint32_t)json_integer_value(json_object_get(a, "id"));
	there = name_id(t, s, n);
	if (there != NO_ID ? there != id || t->tokens[id].added : id < t->n && t->tokens[id].known)
		return err_set(err, DS_DATA, "'%s': added token '%s' has the id or the content of another token",
			t->name, s);
	if (there == NO_ID && put_token(t, s, n, id, true, err))
		return err->code;
	k = &t->tokens[id];
	k->added = true;
	k->special = json_is_true(json_object_get(a, "special"));
	k->off = k->name_off; /* it stands for its content as it is, not for what that spells */
	k->len = k->name_len;
	return added_put(json_is_true(json_object_get(a, "normalized")) ? &t->normal : &t->raw, s, n, id, err);
}

static int read_added(struct tokenizer *t, const json_t *list, struct ds_err *err)
{
	const json_t *a;
	size_t i;

	if (list && !json_is_null(list) && !json_is_array(list))
		return err_set(err, DS_DATA, "'%s': 'added_tokens' is no array", t->name);
	json_array_foreach(list, i, a)
		if (read_added_one(t, a, err))
			return err->code;
	added_sort(&t->raw);
	added_sort(&t->normal);
	return 0;
}

/* No normaliser: absent, or a sequence of none. */
static bool no_normalizer(const json_t *o)
{
	const char *type = json_string_value(json_object_get(o, "type"));
	const json_t *list = json_object_get(o, "normalizers");

	return !o || json_is_null(o) || (type && !strcmp(type, "Sequence") && json_is_array(list) &&
		!json_array_size(list));
}

static int check_top(const struct tokenizer *t, const json_t *root, struct ds_err *err)
{
	static const char *const keys[] = { "version", "truncation", "padding", "added_tokens", "normalizer",
	"pre_tokenizer",
		"post_processor", "decoder", "model", NULL };
	static const char *const off[] = { "truncation", "padding" };
	const char *type = json_string_value(json_object_get(json_object_get(root, "decoder"), "type"));

	if (check_keys(t, root, keys, "the file", err))
		return err->code;
	for (size_t i = 0; i < ARRAY_LEN(off); i++) {
		const json_t *v = json_object_get(root, off[i]);
		if (v && !json_is_null(v))
			return err_set(err, DS_DATA, "'%s': '%s' is set", t->name, off[i]);
	}
	if (!no_normalizer(json_object_get(root, "normalizer")))
		return err_set(err, DS_DATA, "'%s': has a 'normalizer': none is known", t->name);
	if (!type || strcmp(type, "ByteLevel"))
		return err_set(err, DS_DATA, "'%s': unknown decoder '%s': only 'ByteLevel' is known", t->name, type ?
			type : "(none)");
	return check_model(t, json_object_get(root, "model"), err);
}

static int read_root(struct tokenizer *t, const json_t *root, struct ds_err *err)
{
	const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");

	if (check_top(t, root, err) ||
	    names_init(t, json_object_size(json_object_get(model, "vocab")) + json_array_size(added), err) ||
	    read_vocab(t, json_object_get(model, "vocab"), err) ||
	    read_merges(t, json_object_get(model, "merges"), err) ||
	    read_added(t, added, err))
		return err->code;
	t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
	return pre_parse(&t->pre, json_object_get(root, "pre_tokenizer"), t->name, err);
}

int tokenizer_parse(struct tokenizer **out, const char *json, size_t n, const char *name, struct ds_err *err)
{
	struct tokenizer *t = mem_calloc(1, sizeof(*t));
	json_error_t why;
	json_t *root;
	int rc;

	*out = NULL;
	if (!t || !(t->name = strdup(name))) {
		free(t);
		return err_nomem(err, sizeof(*t), "the tokenizer");
	}
	t->bos = -1;
	root = json_loadb(json, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
	if (root)
		rc = read_root(t, root, err);
	else
		rc = err_set(err, DS_DATA, "'%s': bad JSON at line %d: %s", name, why.line, why.text);
	json_decref(root);
	if (rc) {
		tokenizer_free(t);
		return rc;
	}
	*out = t;
	return 0;
}

int tokenizer_open(struct tokenizer **out, const char *dir, struct ds_err *err)
{
	struct text f;
	int rc;

	*out = NULL;
	rc = file_read(dir, "tokenizer.json", TOKENIZER_MAX_FILE, &f, err);
	if (rc)
		return rc;
	rc = tokenizer_parse(out, f.p, f.n, f.path, err);
	file_free(&f);
	if (!rc)
		rc = tokenizer_config_load(*out, dir, err);
	if (rc) {
		tokenizer_free(*out);
		*out = NULL;
	}
	return rc;
}

void tokenizer_free(struct tokenizer *t)
{
	if (!t)
		return;
	pre_free(t->pre);
	added_free(&t->raw);
	added_free(&t->normal);
	bpe_free(&t->bpe);
	bpe_work_free(&t->work);
	buf_free(&t->arena);
	for (size_t i = 0; i < ARRAY_LEN(t->special); i++)
		free(t->special[i]);
	free(t->chat_template);
	free(t->tokens);
	free(t->names);
	free(t->name);
	free(t);
}

/* ---- encoding ---- */

struct encode { struct tokenizer *t; struct ids *out; };

static int encode_piece(void *ctx, const char *p, size_t n, struct ds_err *err)
{
	struct encode *e = ctx;
	struct buf spelt = { 0 };
	uint32_t id = NO_ID;

	if (!e->t->ignore_merges)
		return bpe_encode(&e->t->bpe, &e->t->work, p, n, e->out, err);
	for (size_t i = 0; i < n; i++) { /* the piece in the alphabet of the vocabulary */
		unsigned char b = (unsigned char)p[i];
		const struct token_text *k = &e->t->tokens[e->t->bpe.byte_id[b]];
		buf_add(&spelt, e->t->arena.p + k->name_off, k->name_len);
	}
	if (!spelt.nomem)
		id = name_id(e->t, spelt.p, spelt.len);
	buf_free(&spelt);
	if (id == NO_ID)
		return bpe_encode(&e->t->bpe, &e->t->work, p, n, e->out, err);
	return ids_add(e->out, id) ? 0 : err_nomem(err, 64, "token ids");
}

/* Cuts out the tokens of a set, gives what lies between to `rest`. */
static int cut_added(struct encode *e, const struct added_set *s, const char *p, size_t n,
	int (*rest)(struct encode *, const char *, size_t, struct ds_err *), struct ds_err *err)
{
	size_t done = 0;

	for (size_t i = 0; s->n && i < n; ) {
		const struct added *a = added_at(s, p + i, n - i);
		if (!a) {
			i++;
			continue;
		}
		if (rest(e, p + done, i - done, err))
			return err->code;
		if (!ids_add(e->out, a->id))
			return err_nomem(err, 64, "token ids");
		done = i += a->len;
	}
	return rest(e, p + done, n - done, err);
}

static int encode_plain(struct encode *e, const char *p, size_t n, struct ds_err *err)
{
	return pre_split(e->t->pre, p, n, encode_piece, e, err);
}

static int encode_normal(struct encode *e, const char *p, size_t n, struct ds_err *err)
{
	return cut_added(e, &e->t->normal, p, n, encode_plain, err);
}

int tokenizer_encode(struct tokenizer *t, const char *text, size_t n, struct ids *out, struct ds_err *err)
{
	struct encode e = { .t = t, .out = out };
	size_t bad;

	if (!utf8_valid(text, n, &bad))
		return err_set(err, DS_DATA, "text is not UTF-8: byte 0x%02x at offset %zu",
			(unsigned)(unsigned char)text[bad], bad);
	return cut_added(&e, &t->raw, text, n, encode_normal, err);
}
