"""scripts/figures.d/table.py -- the figures there are, in the order they are made. A new one is a file and a line here."""

import figure_attention
import figure_exchange
import figure_gloo
import figure_mpi
import figure_pack
import figure_scaling
import figure_torch
import figure_train
import figure_ucx

FIGURES = {
    f.NAME: f
    for f in (
        figure_attention,
        figure_scaling,
        figure_exchange,
        figure_pack,
        figure_mpi,
        figure_ucx,
        figure_torch,
        figure_gloo,
        figure_train,
    )
}
