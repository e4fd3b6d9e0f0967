#include "serve/prompt.h"

#include <stdlib.h>
#include <string.h>

int prompt_begin(struct work *w, struct prompt *p, struct ds_err *err)
{
	if (w->mtp) {
		p->hidden = mem_array(w->model->config.hidden, sizeof(*p->hidden));
		if (!p->hidden)
			return err_nomem(err, w->model->config.hidden * sizeof(*p->hidden), "a hidden state");
	}
	p->begun = true;
	p->hit = w->prefix ? prefix_take(w->prefix, p->kv, p->ids, p->count) : 0;
	return 0;
}

void prompt_end(struct prompt *p)
{
	free(p->hidden);
	p->hidden = NULL;
}

struct segment prompt_segment(const struct prompt *p, size_t rows, uint64_t stream, const char *name)
{
	return (struct segment){ .kv = p->kv, .tokens = p->ids + p->kv->length, .rows = rows, .stream = stream,
		.name = name, .want_logits = p->kv->length + rows == p->count };
}

/* MTP entries of the step's rows: all but the prompt's last, which the first generated token completes. */
static int mtp_entries(struct work *w, const struct segment *segs, struct prompt *const *prompts, size_t n,
	struct ds_err *err)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++) {
		const struct prompt *p = prompts[i];
		struct segment *s = &w->mtp_segs[count];

		if (!p)
			continue;
		*s = (struct segment){ .kv = p->kv, .tokens = segs[i].tokens + 1, .h = segs[i].hidden,
			.rows = segs[i].rows - (segs[i].want_logits > 0), .stream = segs[i].stream,
			.name = segs[i].name };
		count += s->rows > 0;
	}
	return count ? engine_mtp(w->engine, w->mtp_segs, count, err) : 0;
}

int prompt_stepped(struct work *w, const struct segment *segs, struct prompt *const *prompts, size_t n,
	struct ds_err *err)
{
	size_t hidden = w->model->config.hidden;
	int rc;

	for (size_t i = 0; i < n; i++)
		if (prompts[i] && segs[i].want_logits && prompts[i]->hidden)
			memcpy(prompts[i]->hidden, segs[i].hidden + (segs[i].rows - 1) * hidden,
				hidden * sizeof(float));
	rc = w->mtp ? mtp_entries(w, segs, prompts, n, err) : 0;
	for (size_t i = 0; i < n && !rc; i++)
		if (prompts[i] && segs[i].want_logits && w->prefix)
			prefix_keep(w->prefix, prompts[i]->kv, prompts[i]->ids, prompts[i]->count);
	return rc;
}

int prompt_first(struct work *w, const struct request *r, const struct prompt *p, const struct segment *s,
	struct sampled *out, struct ds_err *err)
{
	struct sample_history *h;
	int rc = work_history(r, p->ids, p->count, &h, err);

	for (size_t i = 0; i < r->n && !rc; i++)
		if (!work_sample(w, r, i, h, s->logits, s->argmax[0], s->lse[0], p->count, &out[i]))
			rc = work_not_finite(w, r, err);
	profile_out(w->profile, rc ? 0 : r->n);
	sample_history_free(h);
	return rc;
}
