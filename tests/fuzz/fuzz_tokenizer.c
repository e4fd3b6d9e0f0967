/*
 * The tokenizer.  The first byte chooses: 'j' the rest is a tokenizer.json, which encodes a few texts if it is taken;
 * 'p' a pattern of the pre-tokenizer, a NUL, a text; else a text.  Whatever is encoded decodes to the same text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(const struct ds_err *err)
{
	if ((err->code != DS_DATA && err->code != DS_OS) || !err->text[0] || strchr(err->text, '\n'))
		abort();
}

static void check_text(struct tokenizer *t, const char *text, size_t n)
{
	struct detok d = { .special = true };
	struct ds_err err = { 0 };
	struct buf back = { 0 };
	struct ids ids = { 0 };
	size_t bad, split = 0;

	if (tokenizer_encode(t, text, n, &ids, &err)) {
		check_error(&err);
	} else {
		for (size_t i = 0; i < ids.n; i++) {
			size_t from = back.len;
			if (ids.v[i] >= tokenizer_vocab(t) || detok_add(&d, t, ids.v[i], &back, &err))
				abort();
			split += !utf8_valid(back.p ? back.p + from : "", back.len - from, &bad);
		}
		detok_end(&d, &back);
		if (split || back.len != n || (n && memcmp(back.p, text, n)))
			abort();
	}
	buf_free(&back);
	ids_free(&ids);
}

static void check_json(const char *json, size_t n)
{
	static const char *const texts[] = { "", "a", "Hello, world! 123 456",
		"\xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80\n\n  x", "<think>ab</think>" };
	struct ds_err err = { 0 };
	struct tokenizer *t;

	if (tokenizer_parse(&t, json, n, "fuzz", &err)) {
		if (t)
			abort();
		check_error(&err);
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		check_text(t, texts[i], strlen(texts[i]));
	tokenizer_free(t);
}

/* A byte as the vocabulary writes it. */
static void byte_name(unsigned b, char dst[8])
{
	static unsigned next;
	uint32_t c = b;

	if (!b)
		next = 256;
	if (!((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174))
		c = next++;
	dst[utf8_put(c, dst)] = 0;
}

/* A tokenizer of 256 bytes, a few merges and added tokens, with that pattern. */
static void make_json(struct buf *b, const char *pattern, size_t n)
{
	struct jw w;
	char name[8];

	jw_init(&w, b);
	jw_obj(&w);
	jw_key(&w, "added_tokens");
	buf_str(b, "[{\"id\":300,\"content\":\"<think>\",\"special\":false,\"normalized\":true},{\"id\":301,"
		"\"content\":\"<th\",\"special\":true},"
		"{\"id\":302,\"content\":\"\xef\xbd\x9c\xc3\xa9\",\"special\":true}]");
	buf_str(b, ",\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
		"\"pretokenizers\":[{\"type\":\"Split\","
		"\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":");
	jw_init(&w, b);
	jw_strn(&w, pattern, n);
	buf_str(b, "}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
		"\"model\":{\"type\":\"BPE\","
		"\"merges\":[\"a b\",\"ab ab\",\"b a\",\"abab ab\",[\"\xc4\xa0\",\"a\"],\"\xc3\xa4 \xc2\xbd\",\"a "
			"a\",\"aa aa\"],\"vocab\":{"
		"\"ab\":256,\"abab\":257,\"ba\":258,\"ababab\":259,\"\xc4\xa0" "a\":260,\"\xc3\xa4\xc2\xbd\":261,"
		"\"aa\":262,\"aaaa\":263");
	for (unsigned i = 0; i < 256; i++) {
		byte_name(i, name);
		buf_str(b, ",");
		jw_init(&w, b);
		jw_str(&w, name);
		buf_printf(b, ":%u", i);
	}
	buf_str(b, "}}}");
}

static void check_pattern(const char *p, size_t n)
{
	static const char plain[] = "Hello  ab ababab\n\n x123\t\xe4\xbd\xa0";
	const char *nul = n ? memchr(p, 0, n) : NULL;
	size_t len = nul ? (size_t)(nul - p) : n;
	struct ds_err err = { 0 };
	struct buf json = { 0 };
	struct tokenizer *t;

	make_json(&json, p, len);
	if (tokenizer_parse(&t, json.p, json.len, "fuzz", &err)) {
		check_error(&err);
	} else {
		check_text(t, nul ? nul + 1 : p, nul ? n - len - 1 : n);
		check_text(t, plain, sizeof(plain) - 1);
	}
	tokenizer_free(t);
	buf_free(&json);
}

static void check_plain(const char *p, size_t n)
{
	static struct tokenizer *t;
	static const char pattern[] = "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
		"?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
	struct ds_err err = { 0 };
	struct buf json = { 0 };

	if (!t) {
		make_json(&json, pattern, sizeof(pattern) - 1);
		if (tokenizer_parse(&t, json.p, json.len, "fuzz", &err)) {
			puts(err.text);
			abort();
		}
		buf_free(&json);
	}
	check_text(t, p, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *p = (const char *)data;

	if (size && p[0] == 'j')
		check_json(p + 1, size - 1);
	else if (size && p[0] == 'p')
		check_pattern(p + 1, size - 1);
	else
		check_plain(p, size);
	return 0;
}
