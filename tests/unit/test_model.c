/* Opening checkpoints: every layout that is allowed, every defect refused by name; random models. */
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "model/checkpoint.h"
#include "model/make.h"
#include "tests/unit/tap.h"

static char work[1000];

/* ---- a checkpoint taken apart ---- */

struct entry {
	char name[128], dtype[12];
	uint64_t shape[2];
	uint32_t rank;
	unsigned char *data;
	uint64_t bytes;
	int file;            /* which of two files it goes to */
};

static struct entry entries[4000];
static size_t entry_count;
static char base_dir[1100], bad_dir[1100];

static void take_apart(const char *dir)
{
	struct checkpoint c;
	struct ds_err err;

	if (ckpt_open(&c, dir, &err))
		tap_bail("%s", err.text);
	for (size_t i = 0; i < entry_count; i++)
		free(entries[i].data);
	entry_count = c.count;
	for (size_t i = 0; i < c.count; i++) {
		const struct st_tensor *t = c.order[i]->t;
		struct entry *e = &entries[i];

		*e = (struct entry){ .rank = t->rank, .bytes = t->bytes, .data = malloc(t->bytes + 1) };
		memcpy(e->name, t->name, t->name_len);
		memcpy(e->dtype, t->type_name, sizeof(e->dtype));
		memcpy(e->shape, t->shape, sizeof(e->shape));
		memcpy(e->data, t->data, t->bytes);
	}
	ckpt_close(&c);
}

static struct entry *entry(const char *name)
{
	for (size_t i = 0; i < entry_count; i++)
		if (!strcmp(entries[i].name, name))
			return &entries[i];
	tap_bail("no tensor %s", name);
}

static void write_file(const char *name, const void *p, size_t n)
{
	char path[1300];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", bad_dir, name);
	f = fopen(path, "wb");
	if (!f || fwrite(p, 1, n, f) != n || fclose(f))
		tap_bail("cannot write %s", path);
}

static void write_shard(const char *name, int file)
{
	struct buf head = { .p = NULL }, all = { .p = NULL };
	uint64_t at = 0, n;
	const char *comma = "";

	buf_str(&head, "{");
	for (size_t i = 0; i < entry_count; i++) {
		struct entry *e = &entries[i];

		if (e->file != file)
			continue;
		buf_printf(&head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu", comma, e->name, e->dtype,
			(unsigned long long)e->shape[0]);
		if (e->rank == 2)
			buf_printf(&head, ",%llu", (unsigned long long)e->shape[1]);
		buf_printf(&head, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
			(unsigned long long)(at + e->bytes));
		at += e->bytes;
		comma = ",";
	}
	buf_str(&head, "}");
	n = head.len;
	buf_add(&all, &n, 8);
	buf_add(&all, head.p, head.len);
	for (size_t i = 0; i < entry_count; i++)
		if (entries[i].file == file)
			buf_add(&all, entries[i].data, entries[i].bytes);
	write_file(name, all.p, all.len);
	buf_free(&head);
	buf_free(&all);
}

static void put_together(void)
{
	write_shard("model.safetensors", 0);
}

static void set_type(struct entry *e, const char *dtype, size_t size)
{
	uint64_t n = e->shape[0] * (e->rank == 2 ? e->shape[1] : 1);

	snprintf(e->dtype, sizeof(e->dtype), "%s", dtype);
	free(e->data);
	e->bytes = n * size;
	e->data = calloc(1, e->bytes + 1);
}

static int try_open(struct model **m, struct ds_err *err)
{
	err->text[0] = '\0';
	return model_open(m, bad_dir, err);
}

static void refuse(const char *what, const char *text)
{
	struct ds_err err;
	struct model *m;
	int rc = try_open(&m, &err);

	tap_ok(rc == DS_DATA && strstr(err.text, text) && strstr(err.text, bad_dir) && !strchr(err.text, '\n'),
		"%s: %s", what, err.text);
	model_close(m);
	take_apart(base_dir);
}

static void accept_it(const char *what)
{
	struct ds_err err;
	struct model *m;
	int rc = try_open(&m, &err);

	tap_ok(rc == 0, "%s %s", what, err.text);
	model_close(m);
	take_apart(base_dir);
}

/* ---- making ---- */

static void remove_tree(const char *dir)
{
	char command[1300];

	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	if (system(command))
		tap_diag("cannot remove %s", dir);
}

static int make(const char *like, const char *name, size_t layers, enum dtype type, uint64_t seed, uint64_t shard,
	char path[1100])
{
	struct make_options o = {
		.like = like, .layers = layers, .dtype = type, .seed = seed, .shard = shard, .out = path
	};
	struct make_plan p;
	struct ds_err err = { 0 };
	int rc;

	snprintf(path, 1100, "%s/%s", work, name);
	rc = make_model(&o, &p, &err);
	if (rc)
		tap_diag("%s", err.text);
	return rc;
}

static const char fp8_like[] = "tests/golden/v3-tiny-fp8";

#define L1 "model.layers.1."
#define Q_A "model.layers.0.self_attn.q_a_proj.weight"
#define KV_A "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
#define GATE L1 "mlp.gate.weight"
#define BIAS L1 "mlp.gate.e_score_correction_bias"
#define EXPERT L1 "mlp.experts.5.up_proj.weight"

static void remove_entry(const char *name)
{
	struct entry *e = entry(name);

	free(e->data);
	*e = entries[--entry_count];
}

static void test_missing(void)
{
	static const char *const names[] = {
		"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
		"model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight", Q_A,
		"model.layers.0.self_attn.q_a_layernorm.weight", "model.layers.0.self_attn.q_b_proj.weight", KV_A,
		"model.layers.0.self_attn.kv_a_layernorm.weight", "model.layers.0.self_attn.kv_b_proj.weight",
		"model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.gate_proj.weight",
		"model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight", GATE, BIAS, EXPERT,
		L1 "mlp.shared_experts.down_proj.weight", "model.layers.2.eh_proj.weight",
		"model.layers.2.enorm.weight", "model.layers.2.hnorm.weight",
		"model.layers.2.shared_head.norm.weight", "model.layers.2.mlp.gate.weight",
	};
	char text[300];

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		remove_entry(names[i]);
		put_together();
		snprintf(text, sizeof(text), "tensor '%s' is missing", names[i]);
		refuse("missing", text);
	}
	/* A fault of others: an FP8 tensor whose scale is missing or has another name was taken unscaled. */
	remove_entry(EXPERT "_scale_inv");
	put_together();
	refuse("no scale", "tensor '" EXPERT "' is F8_E4M3, but '" EXPERT "_scale_inv' is missing");
	snprintf(entry(KV_A "_scale_inv")->name, 128, "%s", KV_A "_scale");
	put_together();
	refuse("a scale of another name", "'" KV_A "_scale_inv' is missing");
}

static void test_shapes(void)
{
	struct entry *e = entry(EXPERT);

	e->shape[0] = 64, e->shape[1] = 512;
	put_together();
	refuse("shape", "tensor '" EXPERT "' has shape [64,512], config.json makes it [128,256]");
	e = entry("model.norm.weight");
	e->rank = 2, e->shape[1] = e->shape[0], e->shape[0] = 1;
	put_together();
	refuse("a norm with two dimensions",
		"tensor 'model.norm.weight' has shape [1,256], config.json makes it [256]");
	e = entry(EXPERT "_scale_inv");
	e->shape[0] = 2, e->shape[1] = 1;
	put_together();
	refuse("shape of scales", "_scale_inv' has shape [2,1], config.json makes it [1,2]");
	e = entry(BIAS);
	e->rank = 2, e->shape[1] = 1;
	put_together();
	refuse("shape of the bias", "e_score_correction_bias' has shape [64,1]");
}

/* gate and up of all routed experts of layer 1 */
static void set_experts(const char *dtype, size_t size)
{
	for (size_t i = 0; i < entry_count; i++) {
		const char *name = entries[i].name;

		if (!strncmp(name, L1 "mlp.experts.", sizeof(L1 "mlp.experts.") - 1) &&
			(strstr(name, ".gate_proj.weight") || strstr(name, ".up_proj.weight")) &&
			!strstr(name, "scale"))
			set_type(&entries[i], dtype, size);
	}
}

/* What the engine packs once has one type. */
static void test_mixed_types(void)
{
	static const struct {
		const char *name, *dtype, *other;
	} cases[] = {
		{ EXPERT, "BF16", L1 "mlp.experts.5.gate_proj.weight" },
		{ EXPERT, "F32", L1 "mlp.experts.5.gate_proj.weight" },
		{ L1 "mlp.experts.7.down_proj.weight", "BF16", L1 "mlp.experts.0.down_proj.weight" },
		{ L1 "mlp.shared_experts.up_proj.weight", "BF16", L1 "mlp.shared_experts.gate_proj.weight" },
		{ "model.layers.0.mlp.up_proj.weight", "F16", "model.layers.0.mlp.gate_proj.weight" },
		{ "model.layers.2.mlp.experts.1.up_proj.weight", "BF16",
			"model.layers.2.mlp.experts.1.gate_proj.weight" },
	};
	char text[300];

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		set_type(entry(cases[i].name), cases[i].dtype, strcmp(cases[i].dtype, "F32") ? 2 : 4);
		put_together();
		snprintf(text, sizeof(text), "tensor '%s' is %s, but '%s' is F8_E4M3", cases[i].name, cases[i].dtype,
			cases[i].other);
		refuse("types that differ", text);
	}
	set_type(entry(EXPERT), "BF16", 2);
	set_type(entry(L1 "mlp.experts.5.gate_proj.weight"), "BF16", 2);
	put_together();
	refuse("an expert unlike the others", "tensor '" L1 "mlp.experts.5.gate_proj.weight' is BF16, but '" L1
		"mlp.experts.0.gate_proj.weight' is F8_E4M3");
	set_type(entry("model.layers.0.mlp.down_proj.weight"), "BF16", 2);
	set_type(entry(L1 "mlp.shared_experts.down_proj.weight"), "F32", 4);
	set_type(entry(KV_A), "BF16", 2);
	put_together();
	accept_it("down beside gate, attention beside FFNs: each of its own type");
}

static void test_types(void)
{
	static const char *const linear_types[] = { "F32", "F16", "BF16" };
	struct entry *e;

	for (size_t i = 0; i < ARRAY_LEN(linear_types); i++) {
		set_experts(linear_types[i], i ? 2 : 4);
		set_type(entry("model.layers.2.eh_proj.weight"), linear_types[i], i ? 2 : 4);
		set_type(entry(GATE), linear_types[i], i ? 2 : 4);
		set_type(entry("model.norm.weight"), linear_types[i], i ? 2 : 4);
		set_type(entry(BIAS), linear_types[i], i ? 2 : 4);
		put_together();
		accept_it(linear_types[i]);
	}
	set_type(entry(EXPERT), "I32", 4);
	put_together();
	refuse("dtype", "tensor '" EXPERT "' is I32, want F32, BF16, F16 or F8_E4M3");
	set_type(entry(EXPERT), "F8_E5M2", 1);
	put_together();
	refuse("dtype", "tensor '" EXPERT "' is F8_E5M2");
	set_type(entry(GATE), "F8_E4M3", 1);
	put_together();
	refuse("an FP8 router", "tensor '" GATE "' is F8_E4M3, want F32, BF16 or F16");
	set_type(entry(BIAS), "I64", 8);
	put_together();
	refuse("bias", "is I64, want F32, BF16 or F16");
	set_type(entry(EXPERT "_scale_inv"), "BF16", 2);
	put_together();
	refuse("BF16 scales", "_scale_inv' is BF16, want F32");
	e = entry(KV_A "_scale_inv");
	((float *)(void *)e->data)[1] = NAN;
	put_together();
	refuse("a NaN scale", "tensor '" KV_A "_scale_inv' has a scale that is not finite, at [0,1]");
	((float *)(void *)entry(KV_A "_scale_inv")->data)[0] = INFINITY;
	put_together();
	refuse("an infinite scale", "at [0,0]");
}

static void verify_case(const char *name, size_t at, const void *v, size_t n, const char *text)
{
	struct model *m;
	struct ds_err err;
	int rc;

	memcpy(entry(name)->data + at * n, v, n);
	put_together();
	rc = try_open(&m, &err);
	if (!rc)
		rc = model_verify(m, &err);
	tap_ok(rc == DS_DATA && strstr(err.text, name) && strstr(err.text, text), "verify: %s", err.text);
	model_close(m);
	take_apart(base_dir);
}

/* The fault: a value that is half of a copy under way is called the file's. */
static void test_written_to(void)
{
	static const struct timespec old[2] = { { 0, UTIME_OMIT }, { 1000000000, 0 } }; /* clocks of files are coarse */
	static const unsigned char nan = 0xff;
	const struct ckpt_tensor *t;
	struct model *m;
	struct ds_err err;
	char path[1200];
	FILE *f;

	put_together();
	snprintf(path, sizeof path, "%s/model.safetensors", bad_dir);
	if (utimensat(AT_FDCWD, path, old, 0) || try_open(&m, &err))
		tap_bail("cannot open '%s'", path);
	t = ckpt_find(m->files, EXPERT, strlen(EXPERT));
	f = fopen(t->file->path, "r+");
	if (!f || fseek(f, (long)(t->t->data - (const unsigned char *)t->file->map), SEEK_SET) ||
	    fwrite(&nan, 1, 1, f) != 1 || fclose(f))
		tap_bail("cannot write to the model");
	tap_ok(model_verify(m, &err) == DS_DATA && strstr(err.text, "cut or changed"),
		"written to while it is verified: %s", err.text);
	model_close(m);
	take_apart(base_dir);
}

static void test_values(void)
{
	static const uint16_t nan16 = 0x7fc1, inf16 = 0xff80;
	static const unsigned char nan8 = 0xff;
	static const float nan32 = NAN;

	verify_case(EXPERT, 128 * 256 - 1, &nan8, 1, "at element 32767");
	verify_case("model.embed_tokens.weight", 5000, &nan16, 2, "at element 5000");
	verify_case("lm_head.weight", 0, &inf16, 2, "at element 0");
	verify_case(BIAS, 63, &nan32, 4, "at element 63");
}

static void see_unused(void *arg, const char *file, const char *tensor, size_t n)
{
	char *text = arg;

	(void)file;
	snprintf(text, 200, "%.*s", (int)n, tensor);
}

/* Two files with an index; a weight and its scale apart; one tensor that the model does not know. */
static void test_layouts(void)
{
	struct buf index = { .p = NULL };
	struct model *m;
	struct ds_err err;
	char first[40], unused[200] = "";

	put_together();
	if (try_open(&m, &err))
		tap_bail("%s", err.text);
	snprintf(first, sizeof(first), "%s", m->fingerprint);
	model_close(m);

	entries[entry_count] = (struct entry){ .name = "model.layers.0.self_attn.rotary_emb.inv_freq",
		.dtype = "F32",
		.rank = 1,
		.shape = { 1 },
		.bytes = 4,
		.data = calloc(1, 8) };
	entry_count++;
	for (size_t i = 0; i < entry_count; i++)
		entries[i].file = strstr(entries[i].name, "_scale_inv") || i % 3 == 0;
	entries[0].file = 0;
	write_shard("a.safetensors", 0);
	write_shard("b.safetensors", 1);
	buf_str(&index, "{\"weight_map\":{");
	for (size_t i = 0; i < entry_count; i++)
		buf_printf(&index, "%s\"%s\":\"%s.safetensors\"", i ? "," : "", entries[i].name,
			entries[i].file ? "b" : "a");
	buf_str(&index, "}}");
	write_file("model.safetensors.index.json", index.p, index.len);
	tap_ok(try_open(&m, &err) == DS_DATA && strstr(err.text, "remove one"), "one file and an index without it: %s",
		err.text);
	{
		char path[1300];

		snprintf(path, sizeof(path), "%s/model.safetensors", bad_dir);
		unlink(path);
		tap_ok(try_open(&m, &err) == 0, "a weight and its scale in different shards %s", err.text);
		if (m) {
			tap_is_str(m->fingerprint, first, "the same fingerprint however the shards are cut");
			tap_ok(model_unused(m, see_unused, unused) == 1 && strstr(unused, "inv_freq"),
				"one tensor is not used: %s", unused);
			model_close(m);
		}
		snprintf(path, sizeof(path), "%s/model.safetensors.index.json", bad_dir);
		unlink(path);
	}
	buf_free(&index);
	take_apart(base_dir);
}

/* A byte in front shifts everything. */
static void test_odd(void)
{
	struct model *m;
	struct ds_err err;
	struct entry first = entries[0];
	char quick[40];

	put_together();
	if (try_open(&m, &err))
		tap_bail("%s", err.text);
	snprintf(quick, sizeof(quick), "%s", m->fingerprint);
	model_close(m);
	entries[entry_count++] = first;
	entries[0] = (struct entry){ .name = "a", .dtype = "U8", .rank = 1, .shape = { 1 }, .bytes = 1 };
	entries[0].data = calloc(1, 8);
	put_together();
	tap_ok(try_open(&m, &err) == 0, "tensors at odd addresses %s", err.text);
	if (m) {
		tap_ok((uintptr_t)m->layers[1].bias % 4 == 0 && (uintptr_t)m->embed.data % 2 == 0 &&
				(uintptr_t)m->layers[0].kv_a.scale % 4 == 0,
			"are copied to where their type may be read");
		tap_is_str(m->fingerprint, quick, "and the fingerprint is the same");
		model_close(m);
	}
	take_apart(base_dir);
}

static void test_mtp(void)
{
	struct model *m;
	struct ds_err err;

	for (size_t i = 0; i < entry_count;) {
		if (!strncmp(entries[i].name, "model.layers.2.", 15))
			remove_entry(entries[i].name);
		else
			i++;
	}
	put_together();
	tap_ok(try_open(&m, &err) == 0 && m->mtp_count == 0, "a checkpoint without its MTP layer opens %s", err.text);
	model_close(m);
	take_apart(base_dir);
	put_together();
	tap_ok(try_open(&m, &err) == 0 && m->mtp_count == 1, "and with it %s", err.text);
	if (m)
		tap_ok(m->mtp[0].embed.data == m->embed.data && m->mtp[0].head.data == m->head.data &&
				m->mtp[0].layer.moe,
			"an MTP layer without copies uses the model's embedding and head");
	model_close(m);
}

static void test_truncated(void)
{
	char path[1300];
	struct stat st;

	snprintf(path, sizeof(path), "%s/model.safetensors", bad_dir);
	put_together();
	if (stat(path, &st) || truncate(path, st.st_size - 1))
		tap_bail("cannot truncate");
	refuse("a byte short", "lies beyond the end of the file (truncated?)");
	if (truncate(path, 5000))
		tap_bail("cannot truncate");
	refuse("within the header", "lies beyond the end of the file (truncated?)");
}

static void test_no_quantization(void)
{
	char other[1100];
	struct model *m;
	struct ds_err err;
	char command[4000];

	if (make(fp8_like, "plain", 2, DT_BF16, 1, 1u << 30, other))
		tap_bail("no model");
	put_together();
	snprintf(command, sizeof(command), "cp '%s/config.json' '%s/config.json'", other, bad_dir);
	if (system(command))
		tap_bail("cannot copy");
	tap_ok(try_open(&m, &err) == DS_DATA && strstr(err.text, "but config.json has no quantization_config"), "%s",
		err.text);
	snprintf(command, sizeof(command), "cp '%s/config.json' '%s/config.json'", base_dir, bad_dir);
	if (system(command))
		tap_bail("cannot copy");
	remove_tree(other);
}

/* ---- random models ---- */

static void fingerprint_of(const char *dir, char hex[40])
{
	struct model *m;
	struct ds_err err;

	snprintf(hex, 40, "none");
	if (model_open(&m, dir, &err) || model_fingerprint_full(m, hex, &err))
		tap_diag("%s", err.text);
	model_close(m);
}

static void test_random(const char *like)
{
	static const struct {
		enum dtype type;
		const char *name;
	} types[] = { { DT_BF16, "bf16" }, { DT_F8_E4M3, "fp8" }, { DT_F32, "f32" } };
	char a[1100], b[1100], ha[40], hb[40];
	struct ds_err err = { 0 };

	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		struct model *m = NULL;

		make(like, "r1", 2, types[i].type, 7, 1u << 30, a);
		make(like, "r2", 2, types[i].type, 7, 1u << 19, b);
		tap_ok(model_open(&m, a, &err) == 0 && model_verify(m, &err) == 0, "%s as %s opens and is finite %s",
			like, types[i].name, err.text);
		model_close(m);
		fingerprint_of(a, ha);
		fingerprint_of(b, hb);
		tap_is_str(hb, ha, "the same seed gives the same values, in one file or many");
		remove_tree(b);
		make(like, "r2", 2, types[i].type, 8, 1u << 19, b);
		fingerprint_of(b, hb);
		tap_ok(strcmp(ha, hb), "another seed, another model");
		remove_tree(a);
		remove_tree(b);
	}
}

/* The codes are what the golden quantiser makes: the largest of a block is 448, scales are positive and at most max /
 * 448. */
static void test_blocks(void)
{
	const struct entry *w = entry(KV_A), *s = entry(KV_A "_scale_inv");
	size_t cols = w->shape[1], blocks = s->shape[1];
	bool ok = true;
	double sum = 0;

	for (size_t br = 0; br < s->shape[0]; br++)
		for (size_t bc = 0; bc < blocks; bc++) {
			float top = 0, scale;

			memcpy(&scale, s->data + 4 * (br * blocks + bc), 4);
			for (size_t r = br * 128; r < w->shape[0] && r < br * 128 + 128; r++)
				for (size_t c = bc * 128; c < cols && c < bc * 128 + 128; c++) {
					float v = e4m3_to_f32(w->data[r * cols + c]);

					top = fmaxf(top, fabsf(v));
					sum += (double)v * scale * v * scale;
				}
			ok &= top == 448 && scale > 0 && scale < 1;
		}
	tap_ok(ok, "each block's largest value is code 448");
	tap_ok(s->shape[0] == 2 && s->shape[1] == 2, "160 rows have two rows of blocks");
	sum = sqrt(sum / (double)(w->shape[0] * cols));
	tap_ok(fabs(sum * 16 - 1) < 0.05, "standard deviation 1/sqrt(256) (%.4f)", sum);
}

static void test_make_errors(void)
{
	char path[1100];
	struct make_options o = { .like = fp8_like, .layers = 2, .shard = 1u << 30, .out = path };
	struct make_plan p;
	struct ds_err err = { 0 };

	snprintf(path, sizeof(path), "%s", base_dir);
	tap_ok(make_model(&o, &p, &err) == DS_USAGE && strstr(err.text, "it exists"), "does not overwrite: %s",
		err.text);
	snprintf(path, sizeof(path), "%s/no/such/parent", work);
	tap_ok(make_model(&o, &p, &err) == DS_IO, "no parent directory: %s", err.text);
	o.like = "tests/no-such-config.json";
	tap_ok(make_model(&o, &p, &err) == DS_NOINPUT, "no configuration: %s", err.text);
	o.like = "tests/run";
	tap_ok(make_model(&o, &p, &err) == DS_DATA, "no JSON: %s", err.text);
	o.like = fp8_like;
	o.force = true;
	snprintf(path, sizeof(path), "%s", work);
	tap_ok(make_model(&o, &p, &err) == DS_USAGE && strstr(err.text, "is no part of a model"),
		"--force replaces models only: %s", err.text);
}

static void test_goldens(void)
{
	static const char *const names[] = { "v3-tiny", "v3-tiny-fp8", "v2lite-tiny", "v3-norope-tiny",
		"v2-group-tiny" };
	struct model *m;
	struct ds_err err = { 0 };
	char path[1000];

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		tap_unpack(path, names[i]);
		tap_ok(model_open(&m, path, &err) == 0 && model_verify(m, &err) == 0, "%s opens and is finite %s",
			names[i], err.text);
		model_close(m);
	}
	tap_ok(model_open(&m, "examples/models/tiny-r1", &err) == 0 && m->mtp_count == 1 &&
			m->mtp[0].embed.data != m->embed.data,
		"tiny-r1 opens, with an MTP layer that has its own embedding %s", err.text);
	model_close(m);
	tap_is_int(model_open(&m, "tests/no-such-model", &err), DS_NOINPUT, "no model: 66");
	tap_is_int(model_open(&m, "tests/golden/v3-tiny", &err), DS_NOINPUT, "a configuration without weights: 66");
	tap_diag("%s", err.text);
}

int main(void)
{
	char command[4000];

	snprintf(work, sizeof(work), "%s/model-XXXXXX", tap_build());
	if (!mkdtemp(work))
		tap_bail("cannot make %s", work);
	test_goldens();
	if (make(fp8_like, "base", 2, DT_NONE, 1, 1u << 30, base_dir))
		tap_bail("no model to start from");
	snprintf(bad_dir, sizeof(bad_dir), "%s/bad", work);
	snprintf(command, sizeof(command), "mkdir '%s' && cp '%s/config.json' '%s'", bad_dir, base_dir, bad_dir);
	if (system(command))
		tap_bail("cannot copy");
	take_apart(base_dir);
	test_missing();
	test_shapes();
	test_types();
	test_mixed_types();
	test_values();
	test_written_to();
	test_layouts();
	test_odd();
	test_mtp();
	test_truncated();
	test_no_quantization();
	test_blocks();
	test_make_errors();
	test_random("tests/golden/v2lite-tiny");
	test_random("tests/golden/v2-group-tiny");
	for (size_t i = 0; i < entry_count; i++)
		free(entries[i].data);
	remove_tree(work);
	return tap_done();
}
