/*
 * Trying the unit's address on a thread of its own: a name may take long to resolve, the socket's directory may be
 * locked, and the mesh's thread has peers to answer meanwhile.
 *
 * The thread is not waited for where the unit ends first: what it has then got it gives back itself.
 */
#include "ep/unit_impl.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>

#include "base/log.h"

struct unit_try {
	pthread_mutex_t lock;     /* of u and done; held, too, while the unit is told */
	struct unit *u;           /* NULL: nobody waits for it any more */
	bool done;
	struct addr addr;
	bool anywhere, over, begun;
	struct unit_tried result;
	struct stat st;           /* of the socket's file */
};

static bool file_of(const struct unit_try *t, struct stat *st)
{
	return t->addr.kind == ADDR_UNIX && !lstat(t->addr.path, st);
}

static void discard(struct unit_try *t)
{
	struct stat st;

	if (t->result.held >= 0 && file_of(t, &st) && st.st_ino == t->st.st_ino && st.st_dev == t->st.st_dev)
		unlink(t->addr.path);
	if (t->result.held >= 0)
		close(t->result.held);
	if (t->result.fd >= 0)
		close(t->result.fd);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

/* To hold the address; where another process does, or this rank may not, to connect to it. */
static void try_it(struct unit_try *t)
{
	struct unit_tried *r = &t->result;

	if (!addr_bind(&t->addr, t->anywhere, t->over, &r->held, &r->why_not_held)) {
		if (!file_of(t, &t->st))
			memset(&t->st, 0, sizeof(t->st));
		return;
	}
	r->held = -1;
	r->taken = errno == EADDRINUSE || errno == EADDRNOTAVAIL;
	if ((r->taken || t->begun) && addr_start(&t->addr, &r->fd, &r->why))
		r->fd = -1;
}

static void *run(void *arg)
{
	struct unit_try *t = arg;
	struct ds_err err;
	bool orphan;

	try_it(t);
	pthread_mutex_lock(&t->lock);
	orphan = !t->u;
	t->done = true;
	if (!orphan && mesh_call(t->u->mesh, unit_tried_here, t->u, &err))
		log_err(&err);
	pthread_mutex_unlock(&t->lock);
	if (orphan)
		discard(t);
	return NULL;
}

static int start(struct unit_try *t, struct ds_err *err)
{
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	rc = pthread_create(&thread, &attr, run, t);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	errno = rc;
	return rc ? err_errno(err, DS_OS, "cannot make a thread") : 0;
}

int unit_try(struct unit *u, bool over, struct ds_err *err)
{
	struct unit_try *t;

	if (u->seek.trying) /* of an earlier search: it is as good */
		return 0;
	t = mem_calloc(1, sizeof(*t));
	if (!t)
		return err_nomem(err, sizeof(*t), "a try");
	*t = (struct unit_try){ .u = u, .addr = u->addr, .anywhere = u->c.anywhere, .over = over, .begun = u->m.begun,
		.result = { .held = -1, .fd = -1 } };
	pthread_mutex_init(&t->lock, NULL);
	if (start(t, err)) {
		discard(t);
		return err->code;
	}
	u->seek.trying = t;
	return 0;
}

bool unit_try_take(struct unit *u, struct unit_tried *r)
{
	struct unit_try *t = u->seek.trying;

	bool done = false;

	if (t) {
		pthread_mutex_lock(&t->lock);
		done = t->done;
		pthread_mutex_unlock(&t->lock);
	}
	if (!done)
		return false;
	*r = t->result;
	t->result.held = t->result.fd = -1;
	u->seek.trying = NULL;
	discard(t);
	return true;
}

void unit_try_drop(struct unit *u)
{
	struct unit_try *t = u->seek.trying;
	bool done;

	if (!t)
		return;
	u->seek.trying = NULL;
	pthread_mutex_lock(&t->lock);
	t->u = NULL;
	done = t->done;
	pthread_mutex_unlock(&t->lock);
	if (done)
		discard(t);
}
