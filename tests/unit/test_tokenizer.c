/* The tokenizer: vectors, identity of encoding and decoding, streams, files that are refused. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/time.h"
#include "base/utf8.h"
#include "model/tokenizer.h"
#include "tests/unit/tap.h"

#define TINY "examples/models/tiny-r1"

static struct tokenizer *open_or_bail(const char *dir)
{
	struct ds_err err = { 0 };
	struct tokenizer *t;

	if (tokenizer_open(&t, dir, &err))
		tap_bail("%s", err.text);
	return t;
}

static bool decode_all(const struct tokenizer *t, const struct ids *ids, struct buf *out)
{
	struct detok d = { .special = true };
	struct ds_err err;

	out->len = 0;
	for (size_t i = 0; i < ids->n; i++)
		if (detok_add(&d, t, ids->v[i], out, &err))
			return false;
	detok_end(&d, out);
	return true;
}

static bool same_ids(const struct ids *ids, const json_t *want)
{
	if (ids->n != json_array_size(want))
		return false;
	for (size_t i = 0; i < ids->n; i++)
		if (ids->v[i] != (uint32_t)json_integer_value(json_array_get(want, i)))
			return false;
	return true;
}

/* {"text", "ids"} a line: equal ids, and back to the same bytes. */
static void check_vectors(struct tokenizer *t, const char *path, size_t want_lines)
{
	FILE *f = fopen(path, "r");
	char *line = NULL;
	size_t cap = 0, lines = 0, bad = 0;
	struct ids ids = { 0 };
	struct buf back = { 0 };

	if (!f)
		tap_bail("cannot open '%s'", path);
	while (getline(&line, &cap, f) > 0) {
		json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL), *text = json_object_get(o, "text");
		struct ds_err err = { 0 };
		size_t n = json_string_length(text);
		bool ok;
		ids.n = 0;
		lines++;
		ok = !tokenizer_encode(t, json_string_value(text), n, &ids, &err) &&
			same_ids(&ids, json_object_get(o, "ids")) &&
			decode_all(t, &ids, &back) && back.len == n && !memcmp(back.p ? back.p : "",
			json_string_value(text), n);
		if (!ok && bad++ < 5)
			tap_diag("line %zu differs: %s", lines, err.text);
		json_decref(o);
	}
	tap_ok(!bad, "%s: ids of every line, and back", path);
	tap_is_int((long long)lines, (long long)want_lines, "number of lines");
	free(line);
	fclose(f);
	ids_free(&ids);
	buf_free(&back);
}

/* ---- random valid UTF-8 ---- */

struct rng { uint64_t seed, n; };

static uint32_t below(struct rng *r, uint32_t n)
{
	return (uint32_t)(random_bits(r->seed, r->n++) % n);
}

/* Ranges that a text is mixed from: first, count, longest run. */
static const struct { uint32_t from, count, run; } ranges[] = {
	{ 'a', 26, 12 }, { 'A', 26, 6 }, { '0', 10, 9 }, { ' ', 1, 5 }, { '\n', 1, 3 }, { 0, 0x80, 3 },
	{ 0x80, 0x80, 3 }, { 0x300, 0x70, 3 },
	{ 0x4e00, 0x51a6, 8 }, { 0x3040, 0xc0, 5 }, { 0xac00, 0x2ba4, 4 }, { 0x1f300, 0x400, 3 }, { 0x200b, 6, 2 },
	{ 0xfe00, 16, 1 },
	{ 0x2000, 0x70, 2 }, { 0x600, 0x100, 6 }, { 0x900, 0x80, 6 }, { 0x660, 10, 4 }, { 0xff00, 0xf0, 4 },
	{ 0, 0xd800, 3 }, { 0xe000, 0x2000, 3 },
	{ 0x10000, 0x10000, 3 }, { 0x20000, 0x20000, 2 }, { 0x40000, 0xd0000, 2 }, { 0x180e, 1, 2 }, { 0x85, 1, 2 },
	{ '\r', 1, 2 }, { '\t', 1, 3 },
};

static void random_text(struct rng *r, struct buf *out)
{
	static const char *const tokens[] = { "<think>", "</think>", "<｜User｜>", "<｜begin▁of▁sentence｜>",
		"<｜", "<",
		"｜>" };
	size_t runs = below(r, 20);

	out->len = 0;
	buf_str(out, "");
	while (runs--) {
		size_t k = below(r, ARRAY_LEN(ranges));
		uint32_t len = 1 + below(r, ranges[k].run);
		if (!below(r, 12))
			buf_str(out, tokens[below(r, ARRAY_LEN(tokens))]);
		while (len--) {
			char s[4];
			buf_add(out, s, utf8_put(ranges[k].from + below(r, ranges[k].count), s));
		}
	}
}

/* A fault of others: spaces lost, or the alphabet of the byte level shown. */
static void check_round_trip(struct tokenizer *t, const char *what, uint64_t seed, size_t count)
{
	struct rng r = { .seed = seed };
	struct buf text = { 0 }, back = { 0 };
	struct ids ids = { 0 };
	size_t bad = 0;

	for (size_t i = 0; i < count; i++) {
		struct ds_err err = { 0 };
		ids.n = 0;
		random_text(&r, &text);
		if (tokenizer_encode(t, text.p, text.len, &ids, &err) || !decode_all(t, &ids, &back) ||
			back.len != text.len ||
		    memcmp(back.p ? back.p : "", text.p, text.len))
			bad++;
	}
	tap_ok(!bad, "%s: %zu random texts of all planes come back the same", what, count);
	buf_free(&text);
	buf_free(&back);
	ids_free(&ids);
}

/* Every piece that a stream decoder gives is whole characters, whatever the ids; what is valid in the whole comes out
 * unchanged. */
static void check_stream(struct tokenizer *t)
{
	struct rng r = { .seed = 7 };
	struct buf out = { 0 }, text = { 0 }, all = { 0 };
	struct ids ids = { 0 };
	size_t split = 0, differ = 0, bad;
	struct ds_err err;

	for (size_t i = 0; i < 2000; i++) {
		struct detok d = { .special = true };
		random_text(&r, &text);
		ids.n = all.len = 0;
		tokenizer_encode(t, text.p, text.len, &ids, &err);
		for (size_t k = 0; k < ids.n; k++) {
			out.len = 0;
			detok_add(&d, t, ids.v[k], &out, &err);
			split += !utf8_valid(out.p ? out.p : "", out.len, &bad);
			buf_add(&all, out.p, out.len);
		}
		differ += d.n || all.len != text.len || memcmp(all.p ? all.p : "", text.p, text.len);
	}
	tap_ok(!split && !differ, "a stream of ids gives whole characters only");
	split = 0;
	for (size_t i = 0; i < 2000; i++) {
		struct detok d = { 0 };
		for (size_t k = 0; k < 40; k++) {
			out.len = 0;
			detok_add(&d, t, below(&r, (uint32_t)tokenizer_vocab(t)), &out, &err);
			split += !utf8_valid(out.p ? out.p : "", out.len, &bad);
		}
	}
	tap_ok(!split, "random ids never give anything but UTF-8");
	buf_free(&out);
	buf_free(&text);
	buf_free(&all);
	ids_free(&ids);
}

static void bytes_to_text(const struct tokenizer *t, const char *bytes, struct buf *out)
{
	struct detok d = { 0 };
	struct ds_err err;

	out->len = 0;
	for (; *bytes; bytes++)
		for (uint32_t id = 0; id < tokenizer_vocab(t); id++) {
			const char *p;
			size_t n;
			if (tokenizer_bytes(t, id, false, &p, &n) && n == 1 && *p == *bytes) {
				detok_add(&d, t, id, out, &err);
				break;
			}
		}
	detok_end(&d, out);
}

static void check_bad_bytes(const struct tokenizer *t)
{
	static const char *const cases[][2] = {
		{ "a\xc3", "a\xef\xbf\xbd" }, { "\xe4\xbd\xe4\xbd\xa0", "\xef\xbf\xbd\xe4\xbd\xa0" },
		{ "\xff" "b", "\xef\xbf\xbd" "b" },
		{ "\xe2\x28\xa1", "\xef\xbf\xbd(\xef\xbf\xbd" }, { "\xf0\x9f\x98", "\xef\xbf\xbd" },
		{ "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
		{ "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80" },
	};
	struct buf out = { 0 };
	bool ok = true;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		bytes_to_text(t, cases[i][0], &out);
		ok &= out.p && !strcmp(out.p, cases[i][1]);
	}
	tap_ok(ok, "what cannot be a character becomes U+FFFD, one a broken beginning");
	buf_free(&out);
}

static void check_special(struct tokenizer *t)
{
	const char *p;
	size_t n;
	struct ds_err err = { 0 };
	struct ids ids = { 0 };

	tap_ok(tokenizer_bos(t) == 0 && tokenizer_adds_bos(t),
		"bos from tokenizer_config.json");
	tap_ok(tokenizer_id(t, "<think>") == 1022 && tokenizer_id(t, "nothing like it") == -1, "ids by content");
	tap_is_int((long long)tokenizer_vocab(t), 1024, "vocabulary");
	tap_ok(tokenizer_bytes(t, 0, false, &p, &n) && !n && tokenizer_bytes(t, 0, true, &p, &n) && n > 3,
		"special tokens only on demand");
	tap_ok(tokenizer_bytes(t, 1022, false, &p, &n) && n == 7 && !memcmp(p, "<think>", 7),
		"added tokens that are not special are text");
	tap_ok(!tokenizer_bytes(t, 1024, true, &p, &n), "an id over the vocabulary");
	tap_ok(tokenizer_encode(t, "ab\xff" "c", 4, &ids, &err) == DS_DATA && strstr(err.text, "offset 2"),
		"text that is not UTF-8: %s", err.text);
	ids_free(&ids);
}

/* An id without text, as models have whose vocabulary is larger than their tokenizer's: U+FFFD, also where a character
 * had begun, and what follows is not touched. */
static void check_no_text(struct tokenizer *t)
{
	struct detok d = { .special = true };
	struct ds_err err = { 0 };
	struct ids ids = { 0 };
	struct buf out = { 0 };
	bool ok = !tokenizer_encode(t, "\xf0\x9f\x98\x80", 4, &ids, &err) && ids.n > 1;

	ok = ok && !detok_add(&d, t, 1024, &out, &err) && !detok_add(&d, t, ids.v[0], &out, &err) &&
		!detok_add(&d, t, UINT32_MAX, &out, &err);
	for (size_t i = 0; ok && i < ids.n; i++)
		ok = !detok_add(&d, t, ids.v[i], &out, &err);
	detok_end(&d, &out);
	tap_ok(ok && out.p && !strcmp(out.p, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xf0\x9f\x98\x80"),
		"ids without text become U+FFFD");
	ids_free(&ids);
	buf_free(&out);
}

/* A piece without a break is merged in n log n. */
static void check_long(struct tokenizer *t, const char *what)
{
	size_t n = 300000;
	char *text = malloc(n);
	struct ds_err err = { 0 };
	struct ids ids = { 0 };
	struct buf back = { 0 };
	int64_t start = time_mono_ns(), took;

	for (size_t i = 0; i < n; i++)
		text[i] = (char)('a' + random_bits(3, i) % 26);
	tap_ok(!tokenizer_encode(t, text, n, &ids, &err) && decode_all(t, &ids, &back) && back.len == n &&
		!memcmp(back.p, text, n),
		"%s: a word of %zu letters", what, n);
	took = time_mono_ns() - start;
	tap_ok(took < 3000000000, "%s: in a short time", what);
	tap_diag("%zu letters without a break: %.1f ms", n, (double)took / 1e6);
	memset(text, ' ', n);
	ids.n = 0;
	tap_ok(!tokenizer_encode(t, text, n, &ids, &err) && decode_all(t, &ids, &back) && back.len == n,
		"%s: that many blanks", what);
	free(text);
	ids_free(&ids);
	buf_free(&back);
}

static void check_v3(void)
{
	char dir[1000], vectors[1000];
	struct tokenizer *t;
	int64_t start;

	if (!tap_shared(dir, "tokenizers/deepseek-v3") || !tap_shared(vectors, "tokenizers/vectors.jsonl")) {
		tap_skip("DeepSeek-V3's tokenizer is not here (shared data 'tokenizers/deepseek-v3')");
		return;
	}
	start = time_mono_ns();
	t = open_or_bail(dir);
	tap_diag("tokenizer of DeepSeek-V3 opened in %.1f ms", (double)(time_mono_ns() - start) / 1e6);
	tap_is_int((long long)tokenizer_vocab(t), 128815, "V3: vocabulary");
	check_vectors(t, vectors, 300);
	check_round_trip(t, "V3", 2, 3000);
	check_long(t, "V3");
	tokenizer_free(t);
}

/* ---- files that are refused ---- */

static void replace(struct buf *out, const char *text, const char *from, const char *to)
{
	const char *at = strstr(text, from);

	out->len = 0;
	if (!at)
		tap_bail("test text lacks '%s'", from);
	buf_add(out, text, (size_t)(at - text));
	buf_str(out, to);
	buf_str(out, at + strlen(from));
}

static void check_refused(const char *base)
{
	static const char *const cases[][3] = {
		{ "\"type\":\"BPE\"", "\"type\":\"Unigram\"", "'Unigram'" },
		{ "\"dropout\":null", "\"dropout\":0.1", "'dropout'" },
		{ "\"fuse_unk\":false", "\"fuse_everything\":1", "'fuse_everything'" },
		{ "\"byte_fallback\":false", "\"byte_fallback\":true", "'byte_fallback'" },
		{ "\"truncation\":null", "\"truncation\":{\"max_length\":5}", "'truncation'" },
		{ "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]}", "\"normalizer\":{\"type\":\"NFC\"}",
		"'normalizer'" },
		{ "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"", "'Metaspace'" },
		{ "\"behavior\":\"Isolated\"", "\"behavior\":\"Removed\"", "'Removed'" },
		{ "\"invert\":false", "\"invert\":true", "'invert'" },
		{ "\"use_regex\":false", "\"use_regex\":true", "'use_regex'" },
		{ "\"add_prefix_space\":false", "\"add_prefix_space\":true", "'add_prefix_space'" },
		{ "\"type\":\"Split\"", "\"type\":\"Whitespace\"", "'Whitespace'" },
		{ "\"Regex\":\"\\\\p{N}\"", "\"Regex\":\"\\\\h+\"", "'\\h'" },
		{ "\"Regex\":\"\\\\p{N}\"", "\"Regex\":\"[a&&b]\"", "'&&'" },
		{ "\"Regex\":\"\\\\p{N}\"", "\"Regex\":\"(?R)\"", "'(?R)'" },
		{ "\"Regex\":\"\\\\p{N}\"", "\"Regex\":\"(a\"", "bad pattern" },
		{ "\"Regex\":\"\\\\p{N}\"", "\"String\":\"a\"", "'String'" },
		{ "\"lstrip\":false", "\"lstrip\":true", "'lstrip'" },
		{ "\"id\":1023", "\"id\":5", "another token" },
		{ "\"id\":1023", "\"id\":99999999", "'</think>'" },
		{ "\"id\":1023", "\"id\":\"x\"", "'</think>'" },
		{ "\"model\":{", "\"model\":{\"vocab\":{},", "duplicate" },
		{ "\". \xc4\x8a\"", "\". \xc4\x8a zz\"", "merge 0" },
		{ "\". \xc4\x8a\"", "\"qqq zz\"", "'qqq'" },
		{ "\"!\":", "\"!!!!\":", "0x21" },
		{ "\"merges\":", "\"mergers\":", "'mergers'" },
	};
	struct buf b = { 0 };

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct ds_err err = { 0 };
		struct tokenizer *t;
		replace(&b, base, cases[i][0], cases[i][1]);
		tap_ok(tokenizer_parse(&t, b.p, b.len, "t.json", &err) == DS_DATA && !t &&
			strstr(err.text, cases[i][2]) && strstr(err.text, "t.json"),
			"%s: %s", cases[i][1], err.text);
	}
	buf_free(&b);
}

/* Any cut of the file is an error. */
static void check_cut(const char *base)
{
	size_t n = strlen(base), bad = 0;

	for (size_t i = 0; i < n; i += 97) {
		struct ds_err err = { 0 };
		struct tokenizer *t;
		bad += tokenizer_parse(&t, base, i, "t.json", &err) != DS_DATA || t;
	}
	tap_ok(!bad, "a file cut short anywhere is refused");
}

int main(void)
{
	struct tokenizer *t = open_or_bail(TINY), *none;
	struct ds_err err = { 0 };
	json_t *root = json_load_file(TINY "/tokenizer.json", 0, NULL);
	char *base = json_dumps(root, JSON_COMPACT);

	check_vectors(t, "tests/golden/eval/tokenizer-cases.jsonl", 360);
	check_round_trip(t, "tiny-r1", 1, 4000);
	check_stream(t);
	check_bad_bytes(t);
	check_special(t);
	check_no_text(t);
	check_long(t, "tiny-r1");
	tokenizer_free(t);
	check_v3();
	check_refused(base);
	check_cut(base);
	tap_ok(tokenizer_open(&none, "/nonexistent", &err) == DS_NOINPUT && strstr(err.text, "No such file"),
		"no such directory: %s", err.text);
	free(base);
	json_decref(root);
	return tap_done();
}
