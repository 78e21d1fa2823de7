/* How fast do the links carry bytes? Two figures, in Mbit/s of the program's own bytes:
 *   one_way  rank 0 sends BYTES to rank 1
 *   ring     every rank sends BYTES to the next, all at once
 * and `alone`: 1 if MPI takes every rank to be on a host of its own, otherwise 0.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double mbit(int bytes, double seconds) { return bytes * 8.0 / seconds / 1e6; }

/* Seconds for rank 0 until rank 1 has all of it. */
static double one_way(char *out, char *in, int bytes, int rank)
{
    double start = MPI_Wtime();
    if (rank == 0) {
        MPI_Send(out, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(NULL, 0, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(in, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(NULL, 0, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    }
    return MPI_Wtime() - start;
}

/* Seconds until the last rank has all of it. */
static double ring(char *out, char *in, int bytes, int rank, int ranks)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    double start = MPI_Wtime();
    MPI_Sendrecv(out, bytes, MPI_CHAR, next, 0, in, bytes, MPI_CHAR, previous, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Wtime() - start;
}

static int all_alone(void)
{
    MPI_Comm host;
    int ranks_here, most;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &ranks_here);
    MPI_Comm_free(&host);
    MPI_Allreduce(&ranks_here, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return most == 1;
}

int main(int argc, char **argv)
{
    int rank, ranks, bytes = argc > 1 ? atoi(argv[1]) : 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char *out = bytes > 0 ? malloc(bytes) : NULL, *in = bytes > 0 ? malloc(bytes) : NULL;
    if (ranks < 2 || !out || !in) {
        if (rank == 0) fprintf(stderr, "usage: stream BYTES, with two ranks or more\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    memset(out, 1, bytes); /* so that no page is new while the time runs */
    memset(in, 0, bytes);
    int alone = all_alone();
    ring(out, in, 1, rank, ranks); /* connects */
    double way = one_way(out, in, bytes, rank);
    MPI_Barrier(MPI_COMM_WORLD);
    double round = ring(out, in, bytes, rank, ranks);
    if (rank == 0)
        printf("one_way %.1f\nring %.1f\nalone %d\n", mbit(bytes, way), mbit(bytes, round), alone);
    MPI_Finalize();
    free(out);
    free(in);
    return 0;
}
