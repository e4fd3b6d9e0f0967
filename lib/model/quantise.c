#include "model/quantise.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "model/checkpoint.h"
#include "model/config_edit.h"
#include "model/file.h"
#include "model/layout.h"
#include "model/write.h"

enum { PIECE = 4 << 20 }; /* bytes of what is copied that a thread takes at a time */

enum change { KEEP, TO_F8, TO_BF16 };

struct item {
	const struct ckpt_tensor *from;
	const struct mat *mat; /* of what is changed */
	enum change change;
	size_t tensor;         /* in the writer's list; its scales follow it */
	size_t pieces;
};

struct piece { size_t item, number; };

struct job {
	const struct quantise_options *o;
	struct quantise_plan *plan;
	struct model *m;
	struct writer w;
	struct buf config;
	struct item *items;
	size_t count, cap;
	struct ds_err *err;
	/* the file being written */
	struct out_file file;
	struct piece *pieces;
	void **band;           /* [threads] each a band's codes or values, then its scales */
	size_t band_bytes;     /* of the codes or values */
	_Atomic bool failed;
	pthread_mutex_t lock;  /* of the first error */
	struct ds_err first;
};

/* ---- plan ---- */

static int add(struct job *j, const struct item *it, const struct out_tensor *t)
{
	struct item *p = mem_more(j->items, &j->cap, j->count, sizeof *p);

	if (!p)
		return err_nomem(j->err, (j->count + 1) * sizeof *p, "the list of tensors");
	j->items = p;
	j->items[j->count] = *it;
	j->items[j->count++].tensor = j->w.count;
	j->plan->before += it->from->t->bytes;
	return writer_add(&j->w, t, j->err);
}

/* As it is. */
static int plan_copy(struct job *j, const struct ckpt_tensor *e)
{
	const struct st_tensor *t = e->t;
	struct item it = { .from = e, .pieces = (size_t)((t->bytes + PIECE - 1) / PIECE) };
	struct out_tensor out = { .bytes = t->bytes, .rank = t->rank };
	uint64_t n = 1;

	snprintf(out.name, sizeof out.name, "%.*s", (int)t->name_len, t->name);
	snprintf(out.type, sizeof out.type, "%s", t->type_name);
	memcpy(out.shape, t->shape, sizeof out.shape);
	for (uint32_t k = 0; k < t->rank; k++)
		n *= t->shape[k];
	out.esize = n ? (uint32_t)(t->bytes / n) : 1;
	return add(j, &it, &out);
}

static int plan_change(struct job *j, const struct ckpt_tensor *e, const struct weight *w)
{
	struct item it = { .from = e, .mat = w->mat, .change = j->o->back ? TO_BF16 : TO_F8,
		.pieces = (w->rows + FP8_BLOCK - 1) / FP8_BLOCK };
	size_t bytes = FP8_BLOCK * w->cols * (j->o->back ? 2 : 1);
	struct out_tensor t, scale;
	int rc;

	j->plan->changed++;
	j->band_bytes = bytes > j->band_bytes ? bytes : j->band_bytes;
	out_matrix(&t, w->name, j->o->back ? DT_BF16 : DT_F8_E4M3, w->rows, w->cols);
	rc = add(j, &it, &t);
	if (rc || j->o->back)
		return rc;
	out_scale(&scale, &t);
	return writer_add(&j->w, &scale, j->err);
}

static int plan_weight(void *arg, const struct weight *w)
{
	struct job *j = arg;
	const struct ckpt_tensor *e = ckpt_find(j->m->files, w->name, strlen(w->name));

	if (!e || !e->listed)
		return 0; /* optional */
	if (w->kind != WEIGHT_LINEAR || (j->o->back && w->mat->type != DT_F8_E4M3))
		return plan_copy(j, e);
	return plan_change(j, e, w);
}

static void edit(json_t *root, const void *arg)
{
	const struct quantise_options *o = arg;

	config_set_fp8(root, !o->back, o->ue8m0);
}

static int check_kind(const struct job *j)
{
	const struct quantise_options *o = j->o;
	struct stat from, out;

	if (!o->back && j->m->config.fp8)
		return err_set(j->err, DS_DATA, "cannot quantise '%s': it is FP8 already", o->from);
	if (o->back && !j->m->config.fp8)
		return err_set(j->err, DS_DATA, "cannot dequantise '%s': it is not FP8", o->from);
	if (o->out && stat(o->from, &from) == 0 && stat(o->out, &out) == 0 && from.st_dev == out.st_dev &&
	    from.st_ino == out.st_ino)
		return err_set(j->err, DS_USAGE, "cannot make '%s': it is the model to be read", o->out);
	return 0;
}

static int plan_all(struct job *j)
{
	struct config c;
	int rc = model_open(&j->m, j->o->from, j->err);

	if (!rc)
		rc = check_kind(j);
	if (!rc)
		rc = config_edit(j->o->from, edit, j->o, &j->config, &c, j->err);
	if (!rc)
		rc = layout_walk(j->m, plan_weight, j);
	for (size_t i = 0; !rc && i < j->m->files->count; i++) {
		const struct ckpt_tensor *e = j->m->files->order[i];

		if (!e->used && e->listed)
			rc = plan_copy(j, e);
	}
	if (rc)
		return rc;
	writer_plan(&j->w, j->o->shard);
	j->plan->tensors = j->w.count;
	j->plan->shards = j->w.shards;
	j->plan->bytes = j->w.bytes;
	return 0;
}

/* ---- a piece ---- */

/* The pages of what was read are not ours to keep: memory stays small however large the model. */
static void forget(const struct st_tensor *t, uint64_t at, uint64_t n)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)t->data + at + page - 1) / page * page;
	uintptr_t end = ((uintptr_t)t->data + at + n) / page * page;

	if (end > begin)
		madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static int write_band(struct job *j, const struct item *it, size_t number, int worker, struct ds_err *err)
{
	const struct out_tensor *t = &j->w.tensors[it->tensor];
	const struct mat *w = it->mat;
	size_t row = number * FP8_BLOCK, n = w->rows - row < FP8_BLOCK ? w->rows - row : FP8_BLOCK;
	size_t blocks = (w->cols + FP8_BLOCK - 1) / FP8_BLOCK;
	float *scales = (float *)(void *)((unsigned char *)j->band[worker] + j->band_bytes);
	int rc;

	if (it->change == TO_BF16)
		dequantise_band(w, row, n, j->band[worker]);
	else if (!quantise_band(w, row, n, j->o->ue8m0, j->band[worker], scales))
		return err_set(err, DS_DATA,
			"cannot quantise '%s': tensor '%s' has a value that is not finite, in rows %zu to %zu",
			it->from->file->path, t->name, row, row + n - 1);
	rc = writer_put(&j->w, &j->file, t, (uint64_t)row * w->cols * t->esize, j->band[worker],
		n * w->cols * t->esize, err);
	if (!rc && it->change == TO_F8)
		rc = writer_put(&j->w, &j->file, t + 1, number * blocks * sizeof(float), scales, blocks * sizeof(float),
			err);
	forget(it->from->t, row * w->cols * dtype_size(w->type), n * w->cols * dtype_size(w->type));
	return rc;
}

static int write_copy(struct job *j, const struct item *it, size_t number, struct ds_err *err)
{
	const struct st_tensor *t = it->from->t;
	uint64_t at = (uint64_t)number * PIECE, n = t->bytes - at < PIECE ? t->bytes - at : PIECE;
	int rc = writer_put(&j->w, &j->file, &j->w.tensors[it->tensor], at, t->data + at, (size_t)n, err);

	forget(t, at, n);
	return rc;
}

static void run_piece(void *arg, size_t i, int worker)
{
	struct job *j = arg;
	const struct piece *p = &j->pieces[i];
	const struct item *it = &j->items[p->item];
	struct ds_err err;
	int rc;

	if (atomic_load(&j->failed))
		return;
	rc = it->change == KEEP ? write_copy(j, it, p->number, &err) : write_band(j, it, p->number, worker, &err);
	if (!rc)
		return;
	pthread_mutex_lock(&j->lock);
	if (!atomic_exchange(&j->failed, true))
		j->first = err;
	pthread_mutex_unlock(&j->lock);
}

/* ---- files ---- */

static int write_shard(struct job *j, struct kern_stream *s, size_t shard, size_t *next)
{
	size_t first = *next, n = 0, at = 0;
	int rc;

	while (*next < j->count && j->w.tensors[j->items[*next].tensor].shard == shard)
		n += j->items[(*next)++].pieces;
	j->pieces = mem_array(n, sizeof *j->pieces);
	if (!j->pieces)
		return err_nomem(j->err, n * sizeof *j->pieces, "the list of pieces");
	for (size_t i = first; i < *next; i++)
		for (size_t k = 0; k < j->items[i].pieces; k++)
			j->pieces[at++] = (struct piece){ i, k };
	rc = writer_open(&j->w, shard, &j->file, j->err);
	if (!rc) {
		kern_parallel(s, n, run_piece, j);
		if (atomic_load(&j->failed)) {
			*j->err = j->first;
			rc = j->first.code;
		}
		rc = writer_close(&j->file, rc, j->err);
	}
	free(j->pieces);
	if (!rc)
		log_msg(LOG_INFO, "file %zu of %zu is written", shard + 1, j->w.shards);
	return rc;
}

static int threads_of(const struct quantise_options *o)
{
	cpu_set_t set;
	int n = o->threads ? o->threads : sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);

	return n > 0 ? n : 1;
}

static int write_shards(struct job *j)
{
	int threads = threads_of(j->o), rc;
	size_t next = 0, bytes = round_up(j->band_bytes, 64);
	struct kern_stream *s = NULL;

	j->band_bytes = bytes;
	rc = kern_stream_new(&s, threads, "scalar", j->err);
	if (rc)
		return rc;
	j->band = mem_calloc((size_t)threads, sizeof *j->band);
	for (int i = 0; !rc && i < threads; i++) {
		if (j->band)
			j->band[i] = mem_aligned(bytes + bytes / FP8_BLOCK * sizeof(float) + 64);
		if (!j->band || !j->band[i])
			rc = err_nomem(j->err, bytes, "rows of weights");
	}
	for (size_t shard = 0; shard < j->w.shards && !rc; shard++)
		rc = write_shard(j, s, shard, &next);
	for (int i = 0; j->band && i < threads; i++)
		free(j->band[i]);
	free(j->band);
	kern_stream_free(s);
	return rc;
}

/* What goes along: JSON files beside the configuration and the index, chat templates, tokenizer models. */
static bool goes_along(const char *name)
{
	const char *end = strrchr(name, '.');

	if (!end || *name == '.' || !strcmp(name, "config.json") || !strcmp(name, "model.safetensors.index.json"))
		return false;
	return !strcmp(end, ".json") || !strcmp(end, ".jinja") || !strcmp(end, ".model");
}

static int copy_others(struct job *j)
{
	DIR *d = opendir(j->o->from);
	struct dirent *e;
	int rc = d ? 0 : err_errno(j->err, DS_NOINPUT, "cannot read '%s'", j->o->from);

	while (!rc && (e = readdir(d))) {
		struct text t;

		if (!goes_along(e->d_name))
			continue;
		rc = file_read(j->o->from, e->d_name, 1 << 28, &t, j->err);
		if (rc)
			break;
		rc = writer_text(&j->w, e->d_name, t.p, t.n, j->err);
		file_free(&t);
	}
	if (d)
		closedir(d);
	return rc;
}

static int write_all(struct job *j)
{
	int rc = writer_begin(&j->w, j->err);

	if (!rc)
		rc = writer_text(&j->w, "config.json", j->config.p, j->config.len, j->err);
	if (!rc)
		rc = copy_others(j);
	if (!rc)
		rc = write_shards(j);
	rc = ckpt_result(j->m->files, rc, j->err);
	return rc ? rc : writer_finish(&j->w, j->err);
}

int quantise_model(const struct quantise_options *o, struct quantise_plan *plan, struct ds_err *err)
{
	struct job j = { .o = o, .plan = plan, .err = err, .w = { .out = o->out, .force = o->force, .stop = o->stop },
		.lock = PTHREAD_MUTEX_INITIALIZER };
	int rc;

	memset(plan, 0, sizeof *plan);
	rc = plan_all(&j);
	if (!rc && !o->dry_run)
		rc = write_all(&j);
	writer_free(&j.w);
	model_close(j.m);
	free(j.items);
	buf_free(&j.config);
	return rc;
}
