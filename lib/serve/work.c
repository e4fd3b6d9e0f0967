#include "serve/work.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "base/version.h"
#include "serve/dump.h"
#include "serve/ranked.h"

int work_cpus(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);

	return n > 0 ? n : 1;
}

/* Ranks that meet at a unix socket are on this machine; where nobody has bound them to processors they would all take
 * all. */
static int default_threads(const struct rank *me)
{
	int cpus = work_cpus();

	if (!me->unit || strncmp(me->unit, "unix:", 5) != 0 || cpus < sysconf(_SC_NPROCESSORS_ONLN))
		return cpus;
	return cpus > (int)me->world ? cpus / (int)me->world : 1;
}

static int parse_arith(const char *s, enum arith *a, struct ds_err *err)
{
	if (strcmp(s, "bf16") == 0)
		*a = ARITH_BF16;
	else if (strcmp(s, "float32") == 0)
		*a = ARITH_F32;
	else
		return err_set(err, DS_USAGE, "--arith: '%s' is neither 'bf16' nor 'float32'", s);
	return 0;
}

/* By whatever names; a device takes several. */
static bool same_file(const char *a, const char *b)
{
	struct stat sa, sb;
	bool known = stat(a, &sa) == 0;

	if (strcmp(a, "-") == 0 || strcmp(b, "-") == 0 || (stat(b, &sb) == 0) != known)
		return false;
	return known ? S_ISREG(sa.st_mode) && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino : strcmp(a, b) == 0;
}

/* Two outputs of one name: the later would replace the earlier, or not get its place after all the work.  A trace or a
 * dump in the place of the input would be the end of that; only an answer may take it, when it is complete (-f). */
static int check_files(const struct work_options *o, const struct stage_options *io, struct ds_err *err)
{
	const char *names[] = { o->unit.alone ? NULL : io->input, io->output, o->dump_to, o->trace, o->unit.loads_to };
	static const char *const options[] = { "--input", "--output", "--dump-to", "--trace", "--loads-to" };

	if (o->trace && strcmp(o->trace, "-") == 0)
		return err_set(err, DS_USAGE, "--trace: '-' is no file; a trace does not go to standard output");
	for (size_t i = 2; i < ARRAY_LEN(names); i++)
		for (size_t k = 0; k < i; k++)
			if (names[i] && names[k] && same_file(names[i], names[k]))
				return err_set(err, DS_USAGE, "%s: '%s' is the file of %s; name two", options[i],
					names[i], options[k]);
	return 0;
}

int work_settle(struct work_options *o, struct stage_options *io, const struct opt_program *p, struct ds_err *err)
{
	const struct unit_name names[] = { { "--trace", &o->trace }, { "--dump-to", &o->dump_to },
		{ "--loads-to", &o->unit.loads_to } };

	int rc = kv_options_check(&o->kv, p, err);

	return rc ? rc : unit_options_settle(&o->unit, p, io, names, ARRAY_LEN(names), err);
}

struct profiling { struct work *w; const struct profile_options *p; };

static int open_trace(void *arg, struct ds_err *err)
{
	const struct profiling *o = arg;

	return profile_new(&o->w->profile, o->p, err);
}

static int open_profile(struct work *w, const struct work_options *o, const struct stage_options *io,
	const char *program, struct ds_err *err)
{
	struct profile_options p = { .program = program, .trace = o->trace, .force = io->force, .stats = o->stats,
		.json = io->log_format && strcmp(io->log_format, "json") == 0, .rank = (int)o->unit.me.rank };
	int rc = ranked_aside(w, open_trace, &(struct profiling){ w, &p }, err);

	return rc ? rc : engine_set_profile(w->engine, w->profile, w->pool, err);
}

int work_open(struct work *w, const struct work_options *o, const struct stage_options *io, const char *program,
	const char *role, struct ds_err *err)
{
	struct engine_config c = { .max_rows = o->max_rows, .max_segs = o->max_segs, .max_logits = o->max_logits,
		.mtp = o->mtp, .overlap = o->overlap, .micro_batches = 1 };
	int rc;

	memset(w, 0, sizeof(*w));
	if (!o->model)
		return err_set(err, DS_USAGE, "no model given; use -m DIR");
	c.threads = o->threads ? (int)o->threads : default_threads(&o->unit.me);
	if ((rc = parse_arith(o->arith, &c.arith, err)) || (rc = check_files(o, io, err)))
		return rc;
	w->max_rows = o->max_rows;
	w->max_segs = o->max_segs;
	w->mtp = o->mtp;
	w->drain_ns = io->drain_ns;
	if ((rc = model_open(&w->model, o->model, err)) ||
	    (o->unit.me.unit && (rc = ranked_open(w, o, io->anywhere, role, &c, err))) ||
	    (rc = engine_new(&w->engine, w->model, &c, err)) ||
	    (rc = engine_kv_pool(w->engine, o->kv_memory, &w->pool, err)) ||
	    (!o->no_prefix && !o->dump && (rc = prefix_new(&w->prefix, w->pool, w->mtp, err))) ||
	    (rc = sampler_new(&w->sampler, w->model->config.vocab, err)) ||
	    (rc = open_profile(w, o, io, program, err)) ||
	    (rc = kv_options_open(w, &o->kv, o->kv_memory, err)))
		goto fail;
	w->segs = mem_calloc(2 * w->max_segs, sizeof(*w->segs));
	w->mtp_segs = w->segs + w->max_segs;
	if (!w->segs) {
		rc = err_nomem(err, 2 * w->max_segs * sizeof(*w->segs), "segments");
		goto fail;
	}
	log_msg(LOG_INFO, "model %s in '%s', kernels %s, %d thread%s, %zu KV block%s of %d tokens",
		w->model->fingerprint, o->model, engine_kernels(w->engine), c.threads,
		plural((uint64_t)c.threads), w->pool->blocks,
		plural(w->pool->blocks), KV_BLOCK);
	return 0;
fail:
	work_close(w);
	return rc;
}

int work_finish(struct work *w, int rc, struct ds_err *err)
{
	struct ds_err second;
	int failed = profile_finish(w->profile, rc != 0, rc ? &second : err);

	if (rc && failed)
		log_err(&second);
	return rc ? rc : failed;
}

void work_close(struct work *w)
{
	profile_free(w->profile);
	kv_client_close(w->store);
	free(w->segs);
	if (w->tokenizer)
		tokenizer_free(w->tokenizer);
	prefix_free(w->prefix);
	sampler_free(w->sampler);
	kv_pool_free(w->pool);
	engine_free(w->engine);
	ranked_close(w);
	if (w->model)
		model_close(w->model);
	memset(w, 0, sizeof(*w));
}

void work_hello(const struct work *w, struct hello *h, const char *program, const char *role)
{
	const struct config *c = &w->model->config;
	const struct layer *l = &w->model->layers[0];

	memset(h, 0, sizeof(*h));
	h->minor = DS_FRAME_MINOR;
	snprintf(h->program, sizeof(h->program), "%s", program);
	snprintf(h->version, sizeof(h->version), "%s", DS_VERSION);
	snprintf(h->role, sizeof(h->role), "%s", role);
	snprintf(h->model, sizeof(h->model), "%s", w->model->fingerprint);
	snprintf(h->quant, sizeof(h->quant), "%s/%s", dtype_name(l->o.type),
		engine_kv_type(w->engine) == DT_BF16 ? "bf16" : "float32");
	h->vocab = c->vocab;
	h->kv.type = engine_kv_type(w->engine);
	h->kv.block = KV_BLOCK;
	h->kv.layers = c->layers;
	h->kv.dim = engine_kv_dim(w->engine);
	h->mtp = w->mtp;
	ranked_hello(w, h);
}

static bool to_stdout(const struct stage_options *io)
{
	return io->output ? strcmp(io->output, "-") == 0 : !io->listen;
}

struct opening { struct work *w; const struct dump_options *d; const struct hello *hello; };

static int open_there(void *arg, struct ds_err *err)
{
	const struct opening *o = arg;

	return dump_open(&o->w->dump, o->d, o->w->model, o->hello, err);
}

static int open_dump(struct work *w, const struct work_options *o, const struct stage_config *stage, struct ds_err *err)
{
	const struct stage_options *io = &stage->opt;
	struct dump_options d = { .patterns = o->dump, .to = o->dump_to, .force = io->force,
		.mtp = !o->mtp ? DUMP_MTP_NONE : o->drafts ? DUMP_MTP_ALL : DUMP_MTP_KV,
		.stdout_taken = to_stdout(io), .patience_ns = io->peer_ns };
	int rc;

	if (!o->dump && !o->dump_to)
		return 0;
	if (!o->dump || !o->dump_to)
		return err_set(err, DS_USAGE, "--dump and --dump-to go together: what to write and where to");
	rc = ranked_aside(w, open_there, &(struct opening){ w, &d, &stage->hello }, err);
	if (!rc)
		engine_set_tap(w->engine, dump_tap, w->dump);
	return rc;
}

static int flush(void *arg, struct ds_err *err)
{
	struct work *w = arg;

	(void)err;
	kv_client_flush(w->store, (w->draining_ns ? w->draining_ns : time_mono_ns()) + w->drain_ns);
	return 0;
}

/* Who reads our output is not to wait for a store: all has been written. */
static void release_stdout(void)
{
	int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

	if (fd >= 0 && fd != STDOUT_FILENO) {
		dup2(fd, STDOUT_FILENO);
		close(fd);
	}
}

static void store_figures(void *store, struct buf *text, struct jw *json)
{
	if (json)
		kv_client_state(store, json);
	else
		kv_client_report(store, text);
}

/* What waits to be written has as long as running requests have; a signal that the run's end no longer heeds ends it.
 */
static void finish_store(struct work *w, bool stats)
{
	void (*term)(int) = signal(SIGTERM, SIG_DFL), (*interrupt)(int) = signal(SIGINT, SIG_DFL);
	struct ds_err err;

	if (!stage_stopped())
		ranked_aside(w, flush, w, &err);
	signal(SIGTERM, term);
	signal(SIGINT, interrupt);
	if (stats)
		profile_add(w->profile, store_figures, w->store);
}

static struct work *of(void *ctx)
{
	return *(struct work **)ctx;
}

int work_on_bell(void *ctx)
{
	return of(ctx)->store ? kv_client_bell(of(ctx)->store) : ranked_bell(of(ctx));
}

bool work_on_awaited(void *ctx) { return of(ctx)->ranked != NULL; }

bool work_on_waits(void *ctx) { return of(ctx)->store_waits; }

int work_on_aside(void *ctx, int (*fn)(void *arg, struct ds_err *err), void *arg, struct ds_err *err)
{
	return ranked_aside(of(ctx), fn, arg, err);
}

void work_on_ending(void *ctx, struct source *src)
{
	ranked_ending(of(ctx), src);
}

void work_drain(struct work *w)
{
	w->draining_ns = time_mono_ns();
}

void work_state(const struct work *w, struct jw *out)
{
	jw_put_uint(out, "kv_blocks", w->pool->blocks);
	jw_put_uint(out, "kv_blocks_used", w->pool->used - w->pool->idle);
	if (w->store)
		kv_client_state(w->store, out);
	ranked_state(w, out);
}

int work_run(struct work *w, const struct work_options *o, const struct stage_config *stage, struct ds_err *err)
{
	struct ds_err second;
	int rc, failed;

	signal(SIGPIPE, SIG_IGN);
	rc = open_dump(w, o, stage, err);
	if (!rc)
		rc = ranked_begin(w, stage, err);
	if (!rc && !o->unit.alone)
		rc = stage_run(stage, err);
	if (w->store && to_stdout(&stage->opt))
		release_stdout();
	if (w->store)
		finish_store(w, o->stats);
	rc = ranked_finish(w, stage, rc, err);
	if (!w->dump)
		return rc;
	engine_set_tap(w->engine, NULL, NULL);
	/* A dump of a run in which a request failed is the one that is wanted most. */
	failed = dump_close(w->dump, &second);
	w->dump = NULL;
	if (failed && !rc)
		*err = second;
	else if (failed && !w->dump_told)
		log_err(&second);
	return rc ? rc : failed;
}

int work_dumped(struct work *w, struct ds_err *err)
{
	w->dump_told |= w->dump && dump_error(w->dump, err);
	return w->dump_told ? err->code : 0;
}

static int check_prompt(const struct work *w, const struct frame *f, const char *id, const uint32_t *ids, size_t n,
	struct ds_err *err)
{
	const struct config *c = &w->model->config;

	if (n > c->max_positions)
		return err_set(err, DS_DATA,
			"request '%s': prompt of %zu tokens is longer than the model's context of %zu", id, n,
			c->max_positions);
	/* What is kept of a request is its frame: a payload of something else would be kept, too. */
	if (f->data_len > round_up(n * sizeof(*ids), FRAME_ALIGN) + FRAME_ALIGN)
		return err_set(err, DS_DATA, "request '%s': a payload of %u bytes for %zu tokens", id, f->data_len, n);
	for (size_t i = 0; i < n; i++)
		if (ids[i] >= c->vocab)
			return err_set(err, DS_DATA,
				"request '%s': token %u at %zu is not in the model's vocabulary of %zu", id,
				ids[i], i, c->vocab);
	if (kv_blocks_for(n) > w->pool->blocks)
		return err_set(err, DS_CONFIG,
			"request '%s': prompt of %zu token%s needs %zu KV block%s, --kv-memory holds %zu", id,
			n, plural(n), kv_blocks_for(n), plural(kv_blocks_for(n)), w->pool->blocks);
	return 0;
}

int work_request(const struct work *w, const struct frame *f, struct request *r, const uint32_t **ids, size_t *n,
	struct ds_err *err)
{
	int rc;

	if ((rc = request_get(f, r, err)) || (rc = frame_check_payload(f, err)) ||
	    (rc = request_tokens(f, ids, n, err)))
		return rc;
	if (f->stream != frame_stream_id(r->id, strlen(r->id)))
		return err_set(err, DS_DATA, "request '%s': its stream id is not the hash of its name", r->id);
	for (size_t i = 0; i < r->sampling.bias_count; i++)
		if (r->sampling.bias[i].id >= w->model->config.vocab)
			return err_set(err, DS_DATA,
				"request '%s': 'logit_bias' has token %u, not in the model's vocabulary of %zu",
				r->id, r->sampling.bias[i].id, w->model->config.vocab);
	return check_prompt(w, f, r->id, *ids, *n, err);
}

const char *work_name(const struct frame *f, char id[REQUEST_ID_MAX + 1])
{
	return meta_cstr(f->meta, "id", id, REQUEST_ID_MAX + 1) == META_OK ? id : NULL;
}

int work_whole(const struct frame *f, struct source *src, struct ds_err *err)
{
	if (!(f->flags & FRAME_MORE))
		return 0;
	return err_set(err, DS_DATA,
		"'%s': frame %llu: a payload cut into several frames is not supported by this version",
		source_name(src), (unsigned long long)f->number);
}

int work_not_finite(const struct work *w, const struct request *r, struct ds_err *err)
{
	if (engine_check(w->engine, err))
		return err->code;
	return err_set(err, DS_DATA,
		"request '%s': the model's logits are not finite; 'ds-model verify' checks its weights", r->id);
}

int work_other(struct source *src, const struct frame *f, struct ds_err *err)
{
	if (f->type == FRAME_ERROR || f->type == FRAME_DONE)
		return stage_forward(src, f);
	if (f->flags & FRAME_DROPPABLE || f->type == FRAME_STAT)
		return 0;
	return err_set(err, DS_DATA, "'%s': frame %llu: a '%s' frame has no place in this stream", source_name(src),
		(unsigned long long)f->number, frame_type_name(f->type));
}

static struct sample_params params_of(const struct request *r, size_t choice)
{
	const struct sampling *s = &r->sampling;

	return (struct sample_params){ .temperature = s->temperature, .top_p = s->top_p, .min_p = s->min_p,
		.top_k = (size_t)s->top_k, .repetition = s->repetition, .presence = s->presence,
		.frequency = s->frequency, .bias = s->bias, .bias_count = s->bias_count,
		.seed = sample_choice_seed(s->seed, choice), .top_logprobs = (size_t)s->top_logprobs };
}

int work_history(const struct request *r, const uint32_t *prompt, size_t n, struct sample_history **h,
	struct ds_err *err)
{
	struct sample_params p = params_of(r, 0);

	*h = NULL;
	return sample_needs_history(&p) ? sample_history_new(h, prompt, n, err) : 0;
}

bool work_sample(struct work *w, const struct request *r, size_t choice, const struct sample_history *h,
	const float *logits, uint32_t argmax, double lse, uint64_t position, struct sampled *out)
{
	struct sample_params p = params_of(r, choice);
	bool ok;

	profile_begin(w->profile, STAGE_SAMPLE, SIZE_MAX, 1);
	ok = sample_token(w->sampler, &p, h, logits, argmax, lse, position, out);
	profile_end(w->profile);
	return ok;
}

int work_tokenizer(struct work *w, const struct tokenizer **t, struct ds_err *err)
{
	int rc = w->tokenizer ? 0 : tokenizer_open(&w->tokenizer, w->model->dir, err);

	*t = w->tokenizer;
	return rc;
}

void work_print_state(struct buf *json)
{
	ssize_t r;

	buf_add(json, "\n", 1);
	if (json->nomem)
		return;
	r = write(STDERR_FILENO, json->p, json->len);
	(void)r; /* there is nobody left to tell */
}
