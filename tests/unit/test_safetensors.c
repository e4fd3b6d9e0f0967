/* Safetensors headers and files: what is right is read, whatever is wrong is refused in one line. */
#include "base/mem.h"
#include "model/checkpoint.h"
#include "tests/unit/tap.h"

static struct st_tensor *tensors;
static size_t count;

static int parse(const char *header, size_t n, uint64_t data)
{
	static struct ds_err err;
	char *exact = malloc(n ? n : 1); /* of its own size, so that a sanitizer sees a read beyond it */
	int rc;

	if (!exact)
		tap_bail("no memory");
	memcpy(exact, header, n);
	free(tensors);
	rc = st_parse(exact, n, data, "f", &tensors, &count, &err);
	if (rc)
		tap_diag("%s", err.text);
	if (rc && (strchr(err.text, '\n') || strncmp(err.text, "cannot use 'f': ", 16)))
		rc = -1;
	free(exact); /* names point into it: only counts and numbers are looked at */
	return rc;
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define B "\"b\":{\"dtype\":\"BF16\",\"shape\":[3,1],\"data_offsets\":[8,14]}"

static void test_good(void)
{
	static const struct { const char *text; uint64_t data; size_t count; } good[] = {
		{ "{}", 0, 0 }, { " { } \n", 0, 0 }, { "{\"__metadata__\":{\"format\":\"pt\"}}", 0, 0 },
		{ "{" A "}", 8, 1 }, { "{" A "," B "}   ", 14, 2 }, { "{" B "," A "}", 14, 2 },
		{ "{\"__metadata__\":{\"a\":\"\\u00e9\\n\\\"\"}," A "}", 8, 1 },
		{ "{\"s\":{\"shape\":[],\"data_offsets\":[0,8],\"dtype\":\"F64\"}}", 8, 1 },
		{ "{\"e\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[0,0]}," A "}", 8, 2 },
		{ "{\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]}," A "}", 8, 2 },
		{ "{\"\xe4\xb8\xad\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, 1 },
		{ "{\"x\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, 1 },
	};

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		int rc = parse(good[i].text, strlen(good[i].text), good[i].data);

		tap_ok(rc == 0 && count == good[i].count, "accepted: %s", good[i].text);
	}
	parse("{" A "," B "}", strlen("{" A "," B "}"), 14);
	tap_ok(count == 2 && tensors[1].type == DT_BF16 && tensors[1].rank == 2 && tensors[1].shape[0] == 3 &&
			tensors[1].begin == 8 && tensors[1].bytes == 6 && !strcmp(tensors[1].type_name, "BF16"),
		"what was read");
}

static const struct { const char *text; uint64_t data; } bad[] = {
	{ "", 0 }, { "[]", 0 }, { "{", 0 }, { "{" A, 8 }, { "{" A "}x", 8 }, { "{" A ",}", 8 }, { "{" A " " B "}", 14 },
	{ "{\"a\":1}", 0 }, { "{\"a\":{}}", 0 }, { "{\"a\":null}", 0 },
	{ "{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8 }, { "{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2e0],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0 },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0 },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1 },
	{ "{" A "}", 7 }, { "{" A "}", 9 }, { "{" A "}", 0 }, { "{" B "}", 14 }, { "{}", 1 },
	{ "{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[6,12]}}", 12 },
	{ "{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[10,16]}}", 16 },
	{ "{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[99,99]}}", 8 },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":["
	  "18446744073709551608,18446744073709551616]}}", 8 },
	{ "{\"a\\u0062\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"a\n\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"\xed\xa0\x80\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8 },
	{ "{\"__metadata__\":{\"a\":\"\\x\"}}", 0 }, { "{\"__metadata__\":{\"a\":\"\\u12\"}}", 0 },
	{ "{\"__metadata__\":tru}", 0 },
	{ "{\"__metadata__\":-}", 0 }, { "{\"__metadata__\":1.}", 0 }, { "{\"__metadata__\":[1,]}", 0 },
};

static void test_bad(void)
{
	char deep[400];

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		tap_ok(parse(bad[i].text, strlen(bad[i].text), bad[i].data) == DS_DATA, "refused: %s", bad[i].text);
	memset(deep, '[', sizeof(deep));
	memcpy(deep, "{\"__metadata__\":", 16);
	tap_ok(parse(deep, sizeof(deep), 0) == DS_DATA, "refused: nested too deeply");
	for (size_t n = 0; n < strlen("{" A "," B "}"); n++)
		if (parse("{" A "," B "}", n, 14) != DS_DATA)
			tap_ok(false, "refused: cut at byte %zu", n);
	tap_ok(true, "cut at every byte");
	tap_ok(parse("{\"a\0\":{}}", 9, 0) == DS_DATA, "refused: a NUL in a name");
}

/* ---- files ---- */

static char dir[1000];

static void put(const char *name, const void *p, size_t n, uint64_t header)
{
	char path[1200];
	unsigned char length[8];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "wb");
	if (!f)
		tap_bail("cannot write %s", path);
	for (int i = 0; i < 8; i++)
		length[i] = (unsigned char)(header >> 8 * i);
	if (header != UINT64_MAX)
		fwrite(length, 1, 8, f);
	fwrite(p, 1, n, f);
	fclose(f);
}

static void drop(const char *name)
{
	char path[1200];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	unlink(path);
}

static void refuse_file(const char *what, int code, const char *text)
{
	char path[1200];
	struct st_file f;
	struct ds_err err = { 0 };
	int rc;

	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	rc = st_open(&f, path, &err);
	tap_ok(rc == code && strstr(err.text, text) && !strchr(err.text, '\n'), "%s: %s", what, err.text);
	if (!rc)
		st_close(&f);
}

static void test_files(void)
{
	static const char one[] = "{" A "}12345678";

	refuse_file("no file", DS_NOINPUT, "No such file");
	put("model.safetensors", "", 0, UINT64_MAX);
	refuse_file("an empty file", DS_DATA, "0 bytes are no safetensors file");
	put("model.safetensors", "1234", 4, UINT64_MAX);
	refuse_file("four bytes", DS_DATA, "no safetensors file");
	put("model.safetensors", one, sizeof(one) - 1, sizeof(one));
	refuse_file("a header longer than the file", DS_DATA, "beyond the end of the file");
	put("model.safetensors", one, sizeof(one) - 1, UINT64_MAX - 1);
	refuse_file("a header of 2^64 - 2 bytes", DS_DATA, "no safetensors file");
	put("model.safetensors", one, sizeof(one) - 1, 101u << 20);
	refuse_file("a header of 101 MiB", DS_DATA, "no safetensors file");
	put("model.safetensors", one, sizeof(one) - 2, sizeof(one) - 9);
	refuse_file("data cut short", DS_DATA, "tensor 'a': its data lies beyond the end of the file (truncated?)");
	drop("model.safetensors");
	refuse_file("a directory in its place", DS_NOINPUT, "");
}

/* ---- index ---- */

static void index_case(const char *what, const char *index, int code, const char *text)
{
	struct checkpoint c;
	struct ds_err err = { 0 };
	int rc;

	put("model.safetensors.index.json", index, strlen(index), UINT64_MAX);
	rc = ckpt_open(&c, dir, &err);
	tap_ok(rc == code && strstr(err.text, text) && !strchr(err.text, '\n'), "index, %s: %s", what, err.text);
	if (!rc)
		ckpt_close(&c);
	drop("model.safetensors.index.json");
}

static void test_index(void)
{
	static const char one[] = "{" A "}12345678";
	static const char two[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}12345678";
	struct checkpoint c;
	struct ds_err err = { 0 };

	tap_ok(ckpt_open(&c, dir, &err) == DS_NOINPUT, "no checkpoint: %s", err.text);
	put("1.safetensors", one, sizeof(one) - 1, sizeof(one) - 9);
	put("2.safetensors", two, sizeof(two) - 1, sizeof(two) - 9);
	put("3.safetensors", one, sizeof(one) - 1, sizeof(one) - 9);
	index_case("two shards",
		"{\"metadata\":{\"total_size\":16},\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}",
		0, "");
	index_case("swapped", "{\"weight_map\":{\"b\":\"1.safetensors\",\"a\":\"2.safetensors\"}}", DS_DATA,
		"is missing, though");
	index_case("a tensor that is not there", "{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"1.safetensors\"}}",
		DS_DATA, "tensor 'c' is missing");
	index_case("a tensor twice", "{\"weight_map\":{\"a\":\"1.safetensors\",\"a\":\"1.safetensors\"}}", DS_DATA,
		"listed twice");
	index_case("a tensor in two shards", "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}}",
		DS_DATA, "tensor 'a' is in '");
	index_case("a missing shard", "{\"weight_map\":{\"a\":\"4.safetensors\"}}", DS_NOINPUT,
		"4.safetensors': No such file");
	index_case("another directory", "{\"weight_map\":{\"a\":\"../1.safetensors\"}}", DS_DATA, "no plain file name");
	index_case("a hidden file", "{\"weight_map\":{\"a\":\"..\"}}", DS_DATA, "no plain file name");
	index_case("no map", "{\"metadata\":{}}", DS_DATA, "weight_map is missing");
	index_case("an empty map", "{\"weight_map\":{}}", DS_DATA, "weight_map is missing");
	index_case("two maps", "{\"weight_map\":{\"a\":\"1.safetensors\"},\"weight_map\":{\"a\":\"1.safetensors\"}}",
		DS_DATA, "twice");
	index_case("cut short", "{\"weight_map\":{\"a\":\"1.safetensors\"", DS_DATA, "expected");
	index_case("empty", "", DS_DATA, "expected");
	index_case("a number for a shard", "{\"weight_map\":{\"a\":1}}", DS_DATA, "string expected");
	put("model.safetensors", two, sizeof(two) - 1, sizeof(two) - 9);
	index_case("another file beside", "{\"weight_map\":{\"a\":\"1.safetensors\"}}", DS_DATA, "remove one");
	tap_ok(ckpt_open(&c, dir, &err) == 0 && ckpt_find(&c, "b", 1) && !ckpt_find(&c, "a", 1),
		"one file without an index");
	ckpt_close(&c);
	drop("model.safetensors");
	{
		static const char twice[] = "{" A ","
					    "\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]}"
					    "}12345678";

		put("model.safetensors", twice, sizeof(twice) - 1, sizeof(twice) - 9);
		tap_ok(ckpt_open(&c, dir, &err) == DS_DATA && strstr(err.text, "tensor 'a' is there twice"), "%s",
			err.text);
		drop("model.safetensors");
	}
	drop("1.safetensors");
	drop("2.safetensors");
	drop("3.safetensors");
}

int main(void)
{
	test_good();
	test_bad();
	snprintf(dir, sizeof(dir), "%s/safetensors-XXXXXX", tap_build());
	if (!mkdtemp(dir))
		tap_bail("cannot make %s", dir);
	test_files();
	test_index();
	rmdir(dir);
	free(tensors);
	return tap_done();
}
