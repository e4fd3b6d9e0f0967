#include "serve/prefill_impl.h"
#include "serve/ranked.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

int prefill_new(struct prefill **out, struct work *w, size_t chunk, struct ds_err *err)
{
	struct prefill *p = mem_calloc(1, sizeof(*p));

	if (p) {
		p->meta = meta_new();
		p->prompts = mem_calloc(w->max_segs, sizeof(*p->prompts));
	}
	if (!p || !p->meta || !p->prompts) {
		if (p && p->meta)
			meta_free(p->meta);
		free(p ? p->prompts : NULL);
		free(p);
		return err_nomem(err, sizeof(*p), "prefill");
	}
	p->w = w;
	p->chunk = chunk;
	TAILQ_INIT(&p->waiting);
	TAILQ_INIT(&p->active);
	TAILQ_INIT(&p->sending);
	*out = p;
	return 0;
}

static bool has_jobs(struct prefill *p, const struct source *src)
{
	struct job_list *lists[] = { &p->waiting, &p->active, &p->sending };
	struct job *j;

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		TAILQ_FOREACH(j, lists[i], link)
			if (j->src == src)
				return true;
	return false;
}

void prefill_job_free(struct prefill *p, struct job *j)
{
	struct source *src = j->src;

	profile_request_end(p->w->profile, j->frame.stream, j->request.id);
	prompt_end(&j->prompt);
	kv_seq_clear(&j->kv, p->w->pool);
	free(j->result.first);
	free(j->frame.data);
	free((void *)(uintptr_t)j->frame.meta_raw);
	free(j);
	if (--p->held < MAX_WAITING)
		held_resume(&p->paused);
	else if (!has_jobs(p, src))
		held_release(&p->paused, src); /* each may have one, however full it is */
}

static void list_clear(struct prefill *p, struct job_list *list, const struct source *src)
{
	struct job *j = TAILQ_FIRST(list), *next;

	for (; j; j = next) {
		next = TAILQ_NEXT(j, link);
		if (src && j->src != src)
			continue;
		TAILQ_REMOVE(list, j, link);
		source_release(j->src);
		prefill_job_free(p, j);
	}
}

void prefill_free(struct prefill *p)
{
	struct job_list *lists[3];

	if (!p)
		return;
	p->paused.n = 0; /* the sources are gone */
	lists[0] = &p->waiting;
	lists[1] = &p->active;
	lists[2] = &p->sending;
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		while (!TAILQ_EMPTY(lists[i])) {
			struct job *j = TAILQ_FIRST(lists[i]);

			TAILQ_REMOVE(lists[i], j, link);
			prefill_job_free(p, j);
		}
	held_free(&p->paused);
	meta_free(p->meta);
	free(p->prompts);
	free(p);
}

/* ---- what arrives ---- */

static struct job *find(struct prefill *p, const struct source *src, uint64_t stream)
{
	struct job_list *lists[] = { &p->waiting, &p->active, &p->sending };
	struct job *j;

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		TAILQ_FOREACH(j, lists[i], link)
			if (j->src == src && j->frame.stream == stream)
				return j;
	return NULL;
}

/* The job of a request frame; the frame's bytes are kept, since unknown keys travel on. */
static int make_job(struct prefill *p, struct source *src, const struct frame *f, struct job **out, struct ds_err *err)
{
	struct job *j = mem_calloc(1, sizeof(*j));
	struct frame kept;
	int rc;

	if (!j)
		return err_nomem(err, sizeof(*j), "a request");
	rc = work_request(p->w, f, &j->request, &j->prompt.ids, &j->prompt.count, err);
	if (rc) {
		free(j);
		return rc;
	}
	kept = *f;
	kept.data = mem_copy(f->data, f->data_len);
	kept.meta_raw = mem_copy(f->meta_raw, f->meta_len);
	kept.meta = (struct meta){ 0 };
	if (!kept.data || !kept.meta_raw) {
		free(kept.data);
		free((void *)(uintptr_t)kept.meta_raw);
		free(j);
		return err_nomem(err, f->data_len, "a request");
	}
	j->prompt.ids = (const uint32_t *)(const void *)(kept.data + ((const uint8_t *)j->prompt.ids - f->data));
	j->prompt.kv = &j->kv;
	j->frame = kept;
	j->src = src;
	*out = j;
	return 0;
}

static int take_request(struct prefill *p, struct source *src, struct frame *f, struct ds_err *err)
{
	char id[REQUEST_ID_MAX + 1];
	struct ds_err why;
	struct job *j = NULL;

	if (p->draining) {
		err_set(&why, DS_TEMP, "draining: no new requests are taken");
		return stage_error(src, f->stream, work_name(f, id), true, &why);
	}
	if (find(p, src, f->stream))
		return source_twice(src, f, err);
	if (make_job(p, src, f, &j, &why))
		return stage_error(src, f->stream, work_name(f, id), why.code == DS_OS, &why);
	TAILQ_INSERT_TAIL(&p->waiting, j, link);
	source_hold(src);
	p->held++;
	profile_request(p->w->profile, j->frame.stream, j->request.id, j->prompt.count);
	prompt_ask(p->w, &j->prompt);
	return 0;
}

static struct job_list *list_of(struct prefill *p, const struct job *j)
{
	struct job_list *lists[] = { &p->waiting, &p->active, &p->sending };
	struct job *k;

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		TAILQ_FOREACH(k, lists[i], link)
			if (k == j)
				return lists[i];
	return NULL;
}

static void drop(struct prefill *p, struct job *j)
{
	if (!j)
		return;
	TAILQ_REMOVE(list_of(p, j), j, link);
	source_release(j->src);
	prefill_job_free(p, j);
}

/* A request that is here and not yet on its way is answered; for any other the word goes on to who has it. */
static int cancel(struct prefill *p, struct source *src, const struct frame *f)
{
	struct done done = { .reason = "cancelled" };
	struct job *j = find(p, src, f->stream);

	if (!j)
		return stage_forward(src, f);
	if (j->sent) { /* what is half sent is finished first: its reader counts on the rest */
		j->cancelled = true;
		return 0;
	}
	snprintf(done.id, sizeof(done.id), "%s", j->request.id);
	done.usage = prompt_usage(&j->prompt);
	meta_reset(p->meta);
	done_put(p->meta, &done);
	stage_send(j->src, FRAME_DONE, f->stream, p->meta, NULL, 0, false);
	drop(p, j);
	return 0;
}

/* Full: nothing more is read from here than cancels and the like, up to the next request.  A source without any may
 * have one. */
static int on_head(void *ctx, struct source *src, struct frame *f, void **dst, struct ds_err *err)
{
	struct prefill *p = ctx;

	(void)dst;
	(void)err;
	if (f->type == FRAME_REQUEST && p->held >= MAX_WAITING && has_jobs(p, src))
		held_pause(&p->paused, src);
	return 0;
}

static int on_frame(void *ctx, struct source *src, struct frame *f, struct ds_err *err)
{
	struct prefill *p = ctx;
	bool taken = false;
	int rc = work_whole(f, src, err);

	if (!rc)
		rc = ranked_frame(p->w, src, f, &taken, err);
	if (rc || taken)
		return rc;
	if (f->type == FRAME_REQUEST)
		return take_request(p, src, f, err);
	if (f->type == FRAME_CANCEL)
		return cancel(p, src, f);
	if (f->type == FRAME_ERROR || f->type == FRAME_DONE)
		drop(p, find(p, src, f->stream)); /* what failed before it came here, or is done, is not computed */
	return work_other(src, f, err);
}

static void on_gone(void *ctx, struct source *src, bool complete)
{
	struct prefill *p = ctx;

	ranked_gone(p->w, src);
	held_forget(&p->paused, src);
	if (complete)
		return;
	list_clear(p, &p->waiting, src);
	list_clear(p, &p->active, src);
	list_clear(p, &p->sending, src);
}

static int on_step(void *ctx, bool *busy, struct ds_err *err)
{
	return prefill_step(ctx, busy, err);
}

static void on_drain(void *ctx)
{
	struct prefill *p = ctx;

	p->draining = true;
	work_drain(p->w);
}

static size_t list_length(const struct job_list *list)
{
	const struct job *j;
	size_t n = 0;

	TAILQ_FOREACH(j, list, link)
		n++;
	return n;
}

static void on_state(void *ctx)
{
	const struct prefill *p = ctx;
	struct buf b = { 0 };
	struct jw w;

	jw_init(&w, &b);
	jw_obj(&w);
	jw_key(&w, "waiting");
	jw_uint(&w, list_length(&p->waiting));
	jw_key(&w, "active");
	jw_uint(&w, list_length(&p->active));
	jw_key(&w, "sending");
	jw_uint(&w, list_length(&p->sending));
	work_state(p->w, &w);
	jw_obj_end(&w);
	work_print_state(&b);
	buf_free(&b);
}

const struct stage_ops prefill_ops = {
	.head = on_head,
	.frame = on_frame,
	.gone = on_gone,
	.step = on_step,
	.bell = work_on_bell,
	.awaited = work_on_awaited,
	.waits = work_on_waits,
	.aside = work_on_aside,
	.ending = work_on_ending,
	.drain = on_drain,
	.state = on_state,
};
