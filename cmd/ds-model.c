/* ds-model: looks at, verifies, makes and quantises checkpoints; measures the machine that is to run them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/opt.h"
#include "engine/machine.h"
#include "model/checkpoint.h"
#include "model/make.h"
#include "model/model.h"
#include "model/quantise.h"

static const char *model_dir, *like, *output, *tokenizer, *dtype_text, *scale_text, *log_format;
static bool json, full, force, dry_run;
static int64_t layers, seed, threads;
static uint64_t shard;

/* The sub-commands that make a model; the other spellings are looked up as these. */
#define MAKERS "random quantise dequantise"

static const struct opt opts[] = {
	{ .name = "model", .letter = 'm', .arg = "DIR", .help = "the model, where no operand names it",
	  .type = OPT_STR, .dst = &model_dir, .env = true, .commands = "info verify fingerprint quantise dequantise" },
	{ .name = "json", .help = "info, probe: one JSON object",
	  .type = OPT_FLAG, .dst = &json, .commands = "info probe" },
	{ .name = "full", .help = "fingerprint: over every byte of every tensor",
	  .type = OPT_FLAG, .dst = &full, .commands = "fingerprint" },
	{ .name = "like", .arg = "FILE|DIR", .help = "random: the config.json that gives the shape",
	  .type = OPT_STR, .dst = &like, .commands = "random" },
	{ .name = "layers", .arg = "N", .help = "random: another number of layers",
	  .type = OPT_INT, .dst = &layers, .min = 1, .max = 1024, .commands = "random" },
	{ .name = "seed", .arg = "S", .help = "random: another seed, other weights",
	  .def = "0", .type = OPT_INT, .dst = &seed, .commands = "random" },
	{ .name = "dtype", .arg = "TYPE", .help = "random: bf16, fp8 or f32 (what the configuration says)",
	  .type = OPT_STR, .dst = &dtype_text, .commands = "random" },
	{ .name = "scale", .arg = "float|ue8m0", .help = "quantise: scales, any or powers of two as of V3.1",
	  .def = "float", .type = OPT_STR, .dst = &scale_text, .commands = "quantise" },
	{ .name = "shard", .arg = "SIZE", .help = "random, (de)quantise: most bytes a file",
	  .def = "4G", .type = OPT_SIZE, .dst = &shard, .min = 1, .max = (int64_t)1 << 50, .commands = MAKERS },
	{ .name = "tokenizer", .arg = "DIR", .help = "random: copy the tokenizer from there",
	  .type = OPT_STR, .dst = &tokenizer, .commands = "random" },
	{ .name = "output", .letter = 'o', .arg = "DIR", .help = "random, (de)quantise: the directory to make",
	  .type = OPT_STR, .dst = &output, .commands = MAKERS },
	{ .name = "force", .letter = 'f', .help = "random, (de)quantise: replace a model that is there",
	  .type = OPT_FLAG, .dst = &force, .commands = MAKERS },
	{ .name = "dry-run", .letter = 'n', .help = "random, (de)quantise: print the plan, write nothing",
	  .type = OPT_FLAG, .dst = &dry_run, .commands = MAKERS },
	{ .name = "threads", .letter = 'j', .arg = "N", .help = "(de)quantise, probe: threads (0: one a CPU)",
	  .def = "0", .type = OPT_INT, .dst = &threads, .max = 1024, .env = true,
	  .commands = "quantise dequantise probe" },
	{ .name = "log-format", .arg = "text|json", .help = "messages as lines of text or JSON",
	  .def = "text", .type = OPT_STR, .dst = &log_format, .env = true },
	{ .name = NULL },
};

static const struct opt_program program = {
	.name = "ds-model",
	.usage = "info|verify|fingerprint [DIR]  or  quantise|dequantise DIR OUT|-o OUT  or  "
		 "random --like CONFIG -o OUT  or  probe",
	.purpose = "Inspect, verify, quantise and make checkpoints of DeepSeek-architecture models; probe the machine.",
	.example = "ds-model random --like DeepSeek-V3/config.json --layers 4 --dtype fp8 --seed 1 -o /tmp/four-layers",
	.opts = opts,
};

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	stop = sig;
}

/* ---- info ---- */

struct facts {
	struct param_count params;
	uint64_t bytes, type_bytes[DT_COUNT];
	size_t tensors, kv_bytes;
};

static struct facts gather(const struct model *m)
{
	const struct config *c = &m->config;
	struct facts f = { .params = config_params(c), .kv_bytes = c->layers * (c->kv_lora + c->rope) * 2 };

	for (size_t i = 0; i < m->files->count; i++) {
		const struct ckpt_tensor *e = m->files->order[i];

		if (!e->used)
			continue;
		f.tensors++;
		f.bytes += e->t->bytes;
		f.type_bytes[e->t->type] += e->t->bytes;
	}
	if (!m->mtp_count)
		f.params.mtp = 0;
	return f;
}

static const char *score_name(const struct config *c)
{
	return c->score == SCORE_SIGMOID ? "sigmoid" : "softmax";
}

static const char *topk_name(const struct config *c)
{
	return c->topk == TOPK_NOAUX_TC ? "noaux_tc" : c->topk == TOPK_GREEDY ? "greedy" : "group_limited_greedy";
}

struct number { const char *key; uint64_t v; };

static void info_json(const struct model *m, const struct facts *f, struct buf *b)
{
	const struct config *c = &m->config;
	const struct number numbers[] = {
		{ "parameters", f->params.total }, { "active_parameters", f->params.active },
		{ "mtp_parameters", f->params.mtp }, { "tensors", f->tensors }, { "files", m->files->file_count },
		{ "bytes", f->bytes }, { "kv_bytes_per_token", f->kv_bytes }, { "context", c->max_positions },
		{ "vocab", c->vocab }, { "hidden", c->hidden }, { "layers", c->layers },
		{ "dense_layers", c->experts ? c->dense_layers : c->layers }, { "mtp_layers", m->mtp_count },
		{ "heads", c->heads }, { "q_lora", c->q_lora }, { "kv_lora", c->kv_lora }, { "qk_nope", c->nope },
		{ "qk_rope", c->rope }, { "v", c->v }, { "intermediate", c->inter },
		{ "moe_intermediate", c->moe_inter }, { "experts", c->experts }, { "shared_experts", c->shared },
		{ "experts_per_token", c->top_k }, { "groups", c->groups }, { "topk_groups", c->topk_groups },
	};
	struct jw w;

	jw_init(&w, b);
	jw_obj(&w);
	jw_key(&w, "model_type");
	jw_str(&w, c->model_type);
	jw_key(&w, "fingerprint");
	jw_str(&w, m->fingerprint);
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		jw_key(&w, numbers[i].key);
		jw_uint(&w, numbers[i].v);
	}
	jw_key(&w, "bytes_by_dtype");
	jw_obj(&w);
	for (int t = 0; t < DT_COUNT; t++) {
		if (f->type_bytes[t]) {
			jw_key(&w, dtype_name((enum dtype)t));
			jw_uint(&w, f->type_bytes[t]);
		}
	}
	jw_obj_end(&w);
	jw_key(&w, "scoring");
	jw_str(&w, c->experts ? score_name(c) : "none");
	jw_key(&w, "topk_method");
	jw_str(&w, c->experts ? topk_name(c) : "none");
	jw_key(&w, "rope");
	jw_str(&w, c->rope_type == ROPE_YARN ? "yarn" : "plain");
	jw_key(&w, "softmax_scale");
	jw_real(&w, config_softmax_scale(c));
	jw_obj_end(&w);
	buf_str(b, "\n");
}

/* 671026419200 as "671.03 B" (of parameters) or in binary units. */
static void scaled(char *out, size_t size, uint64_t n, unsigned step, const char *const *unit)
{
	double v = (double)n;
	size_t u = 0;

	for (; v >= step && u < 4; u++)
		v /= step;
	snprintf(out, size, u ? "%.2f %s" : "%.0f %s", v, unit[u]);
}

static void info_text(const struct model *m, const struct facts *f, struct buf *b)
{
	static const char *const count[] = { "", "K", "M", "B", "T" },
				 *const size[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
	const struct config *c = &m->config;
	char a[32], d[32];

	buf_printf(b, "architecture   %s\n", c->model_type);
	buf_printf(b, "fingerprint    %s\n", m->fingerprint);
	scaled(a, sizeof a, f->params.total, 1000, count);
	scaled(d, sizeof d, f->params.active, 1000, count);
	buf_printf(b, "parameters     %llu (%s), active %llu (%s)", (unsigned long long)f->params.total, a,
		(unsigned long long)f->params.active, d);
	if (m->mtp_count)
		buf_printf(b, ", MTP %llu", (unsigned long long)f->params.mtp);
	scaled(a, sizeof a, f->bytes, 1024, size);
	buf_printf(b, "\nweights        %s in %zu tensors and %zu file%s:", a, f->tensors, m->files->file_count,
		plural(m->files->file_count));
	for (int t = 0; t < DT_COUNT; t++) {
		scaled(a, sizeof a, f->type_bytes[t], 1024, size);
		if (f->type_bytes[t])
			buf_printf(b, " %s %s", dtype_name((enum dtype)t), a);
	}
	buf_printf(b, "\nKV cache       %zu bytes a token (BF16)\n", f->kv_bytes);
	buf_printf(b, "context        %zu tokens, rope %s\n", c->max_positions,
		c->rope_type == ROPE_YARN ? "YaRN" : "plain");
	buf_printf(b, "layers         %zu (%zu dense) and %zu MTP, hidden %zu, vocabulary %zu\n", c->layers,
		c->experts ? c->dense_layers : c->layers, m->mtp_count, c->hidden, c->vocab);
	buf_printf(b, "attention      %zu heads of %zu + %zu, v %zu, q_lora %zu, kv_lora %zu\n", c->heads, c->nope,
		c->rope, c->v, c->q_lora, c->kv_lora);
	if (c->experts)
		buf_printf(b,
			"experts        %zu of which %zu, %zu shared, %zu groups of which %zu, %s, %s, width %zu\n",
			c->experts, c->top_k, c->shared, c->groups, c->topk_groups, score_name(c), topk_name(c),
			c->moe_inter);
}

static int print_buf(struct buf *b, struct ds_err *err)
{
	int rc = 0;

	if (b->nomem)
		rc = err_nomem(err, b->len, "the answer");
	else if (fwrite(b->p, 1, b->len, stdout) != b->len || fflush(stdout))
		rc = err_errno(err, DS_IO, "cannot write to stdout");
	buf_free(b);
	return rc;
}

static int do_info(const char *dir, struct ds_err *err)
{
	struct model *m;
	struct buf b = { .p = NULL };
	struct facts f;
	int rc = model_open(&m, dir, err);

	if (rc)
		return rc;
	f = gather(m);
	if (json)
		info_json(m, &f, &b);
	else
		info_text(m, &f, &b);
	model_close(m);
	return print_buf(&b, err);
}

/* ---- verify, fingerprint ---- */

static void warn_unused(void *arg, const char *file, const char *tensor, size_t n)
{
	(void)arg;
	log_msg(LOG_WARN, "warning: '%s': tensor '%.*s' is not part of the model", file, (int)n, tensor);
}

static int do_verify(const char *dir, struct ds_err *err)
{
	struct model *m;
	struct buf b = { .p = NULL };
	struct facts f;
	int rc = model_open(&m, dir, err);

	if (rc)
		return rc;
	rc = model_verify(m, err);
	if (!rc) {
		model_unused(m, warn_unused, NULL);
		f = gather(m);
		buf_printf(&b, "%s: ok, %zu tensors, %llu bytes, all finite\n", dir, f.tensors,
			(unsigned long long)f.bytes);
		rc = print_buf(&b, err);
	}
	model_close(m);
	return rc;
}

static int do_fingerprint(const char *dir, struct ds_err *err)
{
	struct model *m;
	struct buf b = { .p = NULL };
	char hex[40];
	int rc = model_open(&m, dir, err);

	if (rc)
		return rc;
	if (full)
		rc = model_fingerprint_full(m, hex, err);
	buf_printf(&b, "%s\n", full ? hex : m->fingerprint);
	model_close(m);
	if (rc) {
		buf_free(&b);
		return rc;
	}
	return print_buf(&b, err);
}

/* ---- random ---- */

static int parse_dtype(enum dtype *t, struct ds_err *err)
{
	*t = DT_NONE;
	if (!dtype_text)
		return 0;
	if (!strcmp(dtype_text, "bf16"))
		*t = DT_BF16;
	else if (!strcmp(dtype_text, "fp8"))
		*t = DT_F8_E4M3;
	else if (!strcmp(dtype_text, "f32"))
		*t = DT_F32;
	else
		return err_set(
			err, DS_USAGE, "--dtype: '%s' is not bf16, fp8 or f32; try 'ds-model --help'", dtype_text);
	return 0;
}

/* Runs what writes a directory: a signal cleans up, then ends the program as it should. */
static int making(int (*make)(struct ds_err *err), struct ds_err *err)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction sa = { .sa_handler = on_signal }, old;
	int rc;

	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		if (!sigaction(ends[i], NULL, &old) && old.sa_handler == SIG_DFL) /* not under nohup */
			sigaction(ends[i], &sa, NULL);
	rc = make(err);
	if (stop) {
		signal(stop, SIG_DFL);
		raise(stop);
	}
	return rc;
}

/* What was made, or would be, where that is to be said: the beginning of the line. */
static void say_made(struct buf *b)
{
	if (dry_run)
		buf_printf(b, "would make %s: ", output ? output : "a model");
	else if (opt_verbose > 0)
		buf_printf(b, "made %s: ", output);
}

static int make_random(struct ds_err *err)
{
	struct make_options o = { .like = like, .out = output, .tokenizer = tokenizer, .layers = (size_t)layers,
		.seed = (uint64_t)seed, .shard = shard, .force = force, .dry_run = dry_run, .stop = &stop };
	struct make_plan p;
	struct buf b = { .p = NULL };
	struct param_count n;
	int rc = parse_dtype(&o.dtype, err);

	if (!rc)
		rc = make_model(&o, &p, err);
	if (rc)
		return rc;
	n = config_params(&p.config);
	say_made(&b);
	if (b.len)
		buf_printf(&b, "%llu parameters (%llu MTP) in %zu tensors, %llu bytes, %zu file%s, %s\n",
			(unsigned long long)(n.total + n.mtp), (unsigned long long)n.mtp, p.tensors,
			(unsigned long long)p.bytes, p.shards, plural(p.shards), dtype_name(p.dtype));
	return b.len ? print_buf(&b, err) : 0;
}

static int do_random(const char *what, char **operands, size_t n, struct ds_err *err)
{
	(void)what, (void)operands, (void)n;
	if (!like || (!output && !dry_run))
		return err_set(err, DS_USAGE, "random needs --like and --output; try 'ds-model --help'");
	return making(make_random, err);
}

/* ---- quantise, dequantise ---- */

static bool back;

static int make_quantised(struct ds_err *err)
{
	struct quantise_options o = { .from = model_dir, .out = output, .back = back, .shard = shard,
		.ue8m0 = !strcmp(scale_text, "ue8m0"), .threads = (int)threads, .force = force, .dry_run = dry_run,
		.stop = &stop };
	struct quantise_plan p;
	struct buf b = { .p = NULL };
	int rc = quantise_model(&o, &p, err);

	if (rc)
		return rc;
	say_made(&b);
	if (b.len)
		buf_printf(&b, "%zu tensors, %zu of them made %s, %llu bytes of %llu, %zu file%s\n", p.tensors,
			p.changed, back ? "BF16" : "FP8", (unsigned long long)p.bytes, (unsigned long long)p.before,
			p.shards, plural(p.shards));
	return b.len ? print_buf(&b, err) : 0;
}

static int do_quantise(const char *what, char **operands, size_t n, struct ds_err *err)
{
	back = *what == 'd';
	if (strcmp(scale_text, "float") && strcmp(scale_text, "ue8m0"))
		return err_set(err, DS_USAGE, "--scale: '%s' is not float or ue8m0; try 'ds-model --help'", scale_text);
	if (n > 1 && output)
		return err_set(err, DS_USAGE, "both --output and the operand '%s' name the output", operands[1]);
	/* The last operand is what --output would say, unless it is all that names the model.  DS_MODEL does not turn
	 * the one operand of a command line that lacks the other into an output. */
	if (!output && (n > 1 || (n == 1 && opt_given(&program, "model"))))
		output = operands[--n];
	if (n > 0)
		model_dir = operands[0];
	if (!model_dir || (!output && !dry_run))
		return err_set(err, DS_USAGE, "%s needs a model's directory and one to make; try 'ds-model --help'",
			what);
	return making(make_quantised, err);
}

/* ---- probe ---- */

static int do_probe(const char *what, char **operands, size_t n, struct ds_err *err)
{
	struct machine m;
	struct buf b = { .p = NULL };
	int rc = machine_measure(&m, (int)threads, 9, err);

	(void)what, (void)operands, (void)n;
	if (rc)
		return rc;
	(json ? machine_json : machine_text)(&m, &b);
	return print_buf(&b, err);
}

/* ---- the words ---- */

static int do_look(const char *what, char **operands, size_t n, struct ds_err *err)
{
	const char *dir = n ? operands[0] : model_dir;

	if (!dir)
		return err_set(err, DS_USAGE, "%s needs a model's directory; try 'ds-model --help'", what);
	return *what == 'i' ? do_info(dir, err) : *what == 'v' ? do_verify(dir, err) : do_fingerprint(dir, err);
}

static const struct command {
	const char *name;
	size_t operands; /* at most */
	int (*run)(const char *what, char **operands, size_t n, struct ds_err *err);
	const char *spelt; /* otherwise, or NULL */
} commands[] = {
	{ "info", 1, do_look, NULL }, { "verify", 1, do_look, NULL }, { "fingerprint", 1, do_look, NULL },
	{ "quantise", 2, do_quantise, "quantize" }, { "dequantise", 2, do_quantise, "dequantize" },
	{ "random", 0, do_random, NULL }, { "probe", 0, do_probe, NULL },
};

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (!strcmp(name, commands[i].name) || (commands[i].spelt && !strcmp(name, commands[i].spelt)))
			return &commands[i];
	return NULL;
}

static int run(int argc, char **argv, struct ds_err *err)
{
	const char *all = "info, verify, fingerprint, quantise, dequantise, random or probe";
	size_t n = argc > 1 ? (size_t)argc - 1 : 0;
	const struct command *c;
	int rc;

	if (strcmp(log_format, "text") && strcmp(log_format, "json"))
		return err_set(
			err, DS_USAGE, "--log-format: '%s' is not text or json; try 'ds-model --help'", log_format);
	log_init("ds-model", !strcmp(log_format, "json"), opt_verbose);
	if (argc == 0)
		return err_set(err, DS_USAGE, "what to do is missing: %s; try 'ds-model --help'", all);
	c = find_command(argv[0]);
	if (!c)
		return err_set(err, DS_USAGE, "'%s' is not %s; try 'ds-model --help'", argv[0], all);
	if (n > c->operands)
		return err_set(err, DS_USAGE, "%s takes no operand '%s'; try 'ds-model --help'", argv[0],
			argv[1 + c->operands]);
	rc = opt_check_command(&program, c->name, err);
	return rc ? rc : c->run(c->name, argv + 1, n, err);
}

int main(int argc, char **argv)
{
	struct ds_err err;
	int rc;

	signal(SIGXFSZ, SIG_IGN); /* EFBIG says it, and what was begun is removed */
	log_init("ds-model", 0, 0);
	rc = opt_parse(&program, &argc, &argv, false, &err);
	if (!rc)
		rc = run(argc, argv, &err);
	return rc ? log_err(&err) : 0;
}
