"""The Python functions of PyTorch-BigGraph that its users call, on top of this trainer.

    from train.pbg_api import ConfigSchema, EntitySchema, RelationSchema, do_eval, train

A program for PBG needs other import lines only: all names are here. Keys, defaults and `to_dict()` are
those of PBG's schema. Dask replaces machines, ranks and partition servers.

    schema       ConfigSchema, EntitySchema, RelationSchema, enums
    converters   text -> buckets, by etl; downloads
    training     train, run_partition_server; ConfigFileLoader, `-p`, log lines
    evaluation   do_eval, evaluators, Stats
"""

from attr import evolve

from graphmill.plugins import (
    COMPARATORS,
    DYNAMIC_OPERATORS,
    LOSS_FUNCTIONS,
    NEGATIVE_SAMPLERS,
    OPERATORS,
    REGULARIZERS,
    AbstractComparator,
    AbstractDynamicOperator,
    AbstractLossFunction,
    AbstractNegativeSampler,
    AbstractOperator,
    AbstractRegularizer,
)
from train.pbg_api.converters import (
    EdgelistReader,
    TSVEdgelistReader,
    convert_input_data,
    download_url,
    extract_gzip,
    extract_tar,
)
from train.pbg_api.evaluation import (
    EdgeList,
    EntityList,
    FilteredRankingEvaluator,
    RankingEvaluator,
    Scores,
    SerializedStats,
    Stats,
    do_eval,
    do_eval_and_report_stats,
)
from train.pbg_api.schema import (
    BucketOrder,
    Comparator,
    ConfigSchema,
    DeepTypeError,
    EntitySchema,
    LossFunction,
    Operator,
    RelationSchema,
    Schema,
)
from train.pbg_api.training import (
    ConfigFileLoader,
    SubprocessInitializer,
    add_to_sys_path,
    call_one_after_the_other,
    override_config_dict,
    parse_config,
    run_partition_server,
    set_logging_verbosity,
    setup_logging,
    train,
)
